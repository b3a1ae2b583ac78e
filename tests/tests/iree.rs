// SPDX-License-Identifier: MIT OR Apache-2.0
//! IREE as its package index distributes it: its compiler's kernels for gfx1100, run by its own program over AMD's HIP and ROCr
//! on the software device, and over AMD's HIP and our library in place of ROCr, against the same program for the CPU.
#![allow(clippy::unwrap_used)]

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use stasis_tests::clients::{Outcome, ended, on_device, rocm_6_1, with_clients};
use stasis_tests::hsa::on_library;
use stasis_tests::python::{python, source};
use stasis_tests::shell::bytes_of;
use tempfile::TempDir;

/// One module, its inputs, and the directory in which it is compiled and run.
struct Module {
    name: &'static str,
    inputs: Vec<String>,
    directory: TempDir,
}

impl Module {
    /// The module of this name with inputs of these types; `value` makes their elements.
    fn new(name: &'static str, types: &[&str], value: impl Fn(usize) -> f32) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let input = |(number, kind): (usize, &&str)| {
            let dimensions = kind.split('x').filter_map(|part| part.parse::<usize>().ok());
            let values: Vec<f32> =
                (0..dimensions.product()).map(|element| value(element + 1000 * number)).collect();
            let bytes = if kind.ends_with("f16") { halves(&values) } else { bytes_of(&values) };
            let path = directory.path().join(format!("input-{number}.bin"));
            fs::write(&path, bytes).unwrap();
            format!("--input={kind}=@{}", path.display())
        };
        let inputs = types.iter().enumerate().map(input).collect();
        Self { name, inputs, directory }
    }

    fn compile(&self, target: &[&str]) -> PathBuf {
        let compiled = self.directory.path().join(format!("{}.vmfb", target[0]));
        let mut command = Command::new(python().with_file_name("iree-compile"));
        command.arg(format!("--iree-hal-target-backends={}", target[0])).args(&target[1..]);
        command.arg(source(&format!("iree/{}.mlir", self.name))).arg("-o").arg(&compiled);
        let ended = ended(&mut command);
        assert!(ended.status.success(), "{}: {}", self.name, ended.said());
        compiled
    }

    /// The arguments with which `iree-run-module` writes the elements of the result to `output`.
    fn arguments(&self, device: &str, compiled: &Path, output: &Path) -> Vec<OsString> {
        let own = [
            format!("--device={device}"),
            format!("--module={}", compiled.display()),
            "--function=main".to_owned(),
            format!("--output=@{}", output.display()),
        ];
        own.into_iter().chain(self.inputs.iter().cloned()).map(OsString::from).collect()
    }

    fn on_cpu(&self) -> Vec<f32> {
        let compiled = self.compile(&["llvm-cpu", "--iree-llvmcpu-target-cpu=generic"]);
        let output = self.directory.path().join("cpu.bin");
        let mut command = Command::new(runner());
        let ended = ended(command.args(self.arguments("local-task", &compiled, &output)));
        assert!(ended.status.success(), "{}: {}", self.name, ended.said());
        floats(&output)
    }

    /// The result on the device, by HIP's library in the prefix of ROCr 6.1.2; how it ended, too. The command is one that a program
    /// follows.
    fn by_hip(&self, mut command: Command) -> (Outcome, Vec<f32>) {
        let compiled = self.compile(&["rocm", "--iree-rocm-target=gfx1100"]);
        let output = self.directory.path().join("device.bin");
        let prefix = rocm_6_1();
        let libraries = prefix.join("root/usr/lib/x86_64-linux-gnu");
        let base = prefix.join("base/usr/lib/x86_64-linux-gnu");
        if base.exists() {
            // HIP's library was linked with a newer C library than the machine's.
            let path = format!("{}:{}", base.display(), libraries.display());
            command.arg(base.join("ld-linux-x86-64.so.2")).args(["--library-path", &path]);
        } else {
            command.env("LD_LIBRARY_PATH", &libraries);
        }
        command.arg(runner()).arg(format!("--hip_dylib_path={}", libraries.display()));
        let ended = ended(command.args(self.arguments("hip", &compiled, &output)));
        assert!(ended.status.success(), "{}: {}", self.name, ended.said());
        let found = floats(&output);
        (ended, found)
    }

    /// The result of AMD's runtime under `stasis run`.
    fn on_device(&self) -> Vec<f32> {
        let (ended, found) = self.by_hip(on_device("soft:gfx1100"));
        ended.computed();
        found
    }

    /// The result of our runtime in its place.
    fn on_library(&self) -> Vec<f32> {
        self.by_hip(on_library("soft:gfx1100")).1
    }
}

/// IREE's program inside its package. The one of this name in `bin` is a Python script, and Python is linked with the machine's
/// C library.
fn runner() -> PathBuf {
    let libraries = python().parent().unwrap().with_file_name("lib");
    let entries = fs::read_dir(libraries).unwrap().map(|entry| entry.unwrap().path());
    let mut places = entries.map(|python| python.join("site-packages/iree/_runtime_libs/iree-run-module"));
    places.find(|place| place.exists()).unwrap()
}

fn floats(path: &Path) -> Vec<f32> {
    let bytes = fs::read(path).unwrap();
    bytes.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)).collect()
}

/// The bits of whole numbers from -8 to 8 in half precision.
fn halves(values: &[f32]) -> Vec<u8> {
    let bits = |value: &f32| {
        if *value == 0.0 {
            return 0;
        }
        // The same sign, the exponent with another bias, the first ten bits of the fraction.
        let single = value.to_bits();
        let sign = (single >> 16) & 0x8000;
        (sign | (((single >> 23) & 0xff) - 127 + 15) << 10 | (single >> 13) & 0x3ff) as u16
    };
    values.iter().flat_map(|value| bits(value).to_le_bytes()).collect()
}

/// Whole numbers from -4 to 4 without a visible order: sums of their products are exact in any order.
fn whole(element: usize) -> f32 {
    (element.wrapping_mul(2_654_435_761) >> 7) as u8 as f32 % 9.0 - 4.0
}

fn same_bits(name: &'static str, inputs: &[&str]) {
    with_clients(|| {
        let module = Module::new(name, inputs, whole);
        let (found, wanted) = (module.on_device(), module.on_cpu());
        assert!(wanted.iter().any(|value| *value != wanted[0]), "{name}: {wanted:?}");
        assert_eq!(found, wanted, "{name}");
        assert_eq!(module.on_library(), wanted, "{name} on our library");
    });
}

#[test]
fn sums_are_the_cpus() {
    same_bits("add", &["1000xf32", "1000xf32"]);
}

#[test]
fn products_of_matrices_are_the_cpus() {
    same_bits("matmul", &["33x65xf32", "65x17xf32"]);
}

#[test]
fn products_by_matrix_instructions_are_the_cpus() {
    same_bits("half", &["32x48xf16", "48x64xf16"]);
}

#[test]
fn two_dense_layers_are_the_cpus() {
    same_bits("mlp", &["8x32xf32", "32x48xf32", "48xf32", "48x10xf32", "10xf32"]);
}

#[test]
fn softmax_is_the_cpus_but_for_the_last_bits() {
    with_clients(|| {
        let module = Module::new("softmax", &["12x77xf32"], |element| whole(element) / 3.0);
        let (found, wanted) = (module.on_device(), module.on_cpu());
        assert_eq!((found.len(), wanted.len()), (12 * 77, 12 * 77));
        // Each has its own exponential, whose last bit may differ, and its own order of summands.
        for (found, wanted) in found.iter().zip(&wanted) {
            assert!((found - wanted).abs() <= 1e-6 * wanted, "{found} for {wanted}");
        }
        for row in found.chunks(77) {
            assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-5, "{row:?}");
        }
    });
}
