"""Tests of the net: see layer_test first."""

load("//tools/rules/private:engines.bzl", _ENGINES = "ENGINES", _engine_libraries = "engine_libraries")
load("//tools/rules/private:layer_test.bzl", _ENGINE_PRESENT = "ENGINE_PRESENT", _fault_test = "fault_test", _layer_suites = "layer_suites", _layer_test = "layer_test")
load("//tools/rules/private:package_sources.bzl", _package_sources = "package_sources")
load("//tools/rules/private:torchrun_test.bzl", _torchrun_test = "torchrun_test")

ENGINES = _ENGINES
ENGINE_PRESENT = _ENGINE_PRESENT

engine_libraries = _engine_libraries
fault_test = _fault_test
layer_suites = _layer_suites
layer_test = _layer_test
package_sources = _package_sources
torchrun_test = _torchrun_test
