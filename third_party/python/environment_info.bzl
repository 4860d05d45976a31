"""What a test needs to know about the Python environment that it runs in."""

PythonEnvironmentInfo = provider(
    doc = "One Python with the packages of one device.",
    fields = {
        "device": "cpu, cuda or npu.",
        "executable_paths": "List of absolute directories to put before PATH (the vendor's compilers and tools).",
        "fingerprint": "File: JSON of everything that decides whether a cached result still holds.",
        "import_paths": "List of absolute directories to import from, for packages that are not shipped.",
        "interpreter": "Absolute path of the real interpreter, behind shims and virtual environments.",
        "site": "File: the one source directory with all packages, or None when they are not shipped.",
        "variables": "Dict of environment variables that the vendor's set-up script exported.",
    },
)

def _python_environment_info_impl(ctx):
    if ctx.attr.problem:
        fail("\n\n" + ctx.attr.problem + "\n")
    shipped = [ctx.file.site] if ctx.file.site else []
    return [
        DefaultInfo(files = depset(shipped + [ctx.file.fingerprint])),
        PythonEnvironmentInfo(
            device = ctx.attr.device,
            executable_paths = ctx.attr.executable_paths,
            fingerprint = ctx.file.fingerprint,
            import_paths = ctx.attr.import_paths,
            interpreter = ctx.attr.interpreter,
            site = ctx.file.site,
            variables = ctx.attr.variables,
        ),
    ]

python_environment_info = rule(
    implementation = _python_environment_info_impl,
    doc = "Written by the python_environment repository rule into its BUILD file.",
    attrs = {
        "device": attr.string(doc = "cpu, cuda or npu.", default = "cpu"),
        "executable_paths": attr.string_list(doc = "Directories to put before PATH."),
        "fingerprint": attr.label(doc = "The fingerprint file.", allow_single_file = [".json"]),
        "import_paths": attr.string_list(doc = "Directories to import from when the packages are not shipped."),
        "interpreter": attr.string(doc = "Absolute path of the interpreter."),
        "problem": attr.string(doc = "Why there is no environment; building anything that needs it fails with this text."),
        "site": attr.label(doc = "The directory of all packages, when they are shipped.", allow_single_file = True),
        "variables": attr.string_dict(doc = "Environment variables for the tests."),
    },
    provides = [PythonEnvironmentInfo],
)
