// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that load our `libhsa-runtime64.so.1` in place of AMD's: the library, C programs of `tests/clients/hsa`, how both
//! runtimes are given to a program.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::clients::{on_device, rocm_6_1};
use crate::program;

/// What programs load.
const NAME: &str = "libhsa-runtime64.so.1";

/// Our library, which `cargo xtask test` has linked.
///
/// # Panics
/// When it was not.
#[must_use]
pub fn library() -> PathBuf {
    let path = program("stasis").with_file_name("hsa").join(NAME);
    assert!(path.is_file(), "no {}: run `cargo xtask test`", path.display());
    path
}

/// A command whose program has our library before all others of the name, and finds these devices. The program follows `env`.
///
/// # Panics
/// When there is no library.
#[must_use]
pub fn on_library(devices: &str) -> Command {
    let library = library();
    let directory = library.parent().expect("a path with a directory");
    let mut command = Command::new("prlimit");
    // Programs of the HIP compiler here have the path of AMD's libraries in them, which goes before LD_LIBRARY_PATH.
    command.args(["--core=0", "env"]).arg(format!("LD_PRELOAD={}", library.display()));
    command.arg(format!("LD_LIBRARY_PATH={}", directory.display()));
    command.envs(own_device(devices));
    command
}

/// A program on AMD's runtime of release 6.1, by `stasis run`; its path and arguments follow.
#[must_use]
pub fn on_rocr(devices: &str) -> Command {
    let rocm = rocm_6_1();
    let base = rocm.join("base/usr/lib/x86_64-linux-gnu");
    let libraries = format!("{}:{}", base.display(), rocm.join("root/usr/lib/x86_64-linux-gnu").display());
    let mut command = on_device(devices);
    command.arg(base.join("ld-linux-x86-64.so.2")).arg("--library-path").arg(libraries);
    command
}

/// The environment of a program with these devices on a softgpud of its own: another test's would end with that, and have less
/// memory.
#[must_use]
pub fn own_device(devices: &str) -> [(&'static str, String); 3] {
    static MADE: AtomicUsize = AtomicUsize::new(0);
    let instance = format!("hsa-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
    let softgpud = program("softgpud").display().to_string();
    [
        ("STASIS_DEVICE", devices.to_owned()),
        ("STASIS_SOFTGPUD", softgpud),
        ("STASIS_SOFTGPU_INSTANCE", instance),
    ]
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/hsa")
}

/// Has a compiler make a file in `directory`.
fn compile(directory: &Path, name: &str, compiler: &str, arguments: &[&str], source: &str) -> PathBuf {
    let made = directory.join(name);
    let mut command = Command::new(compiler);
    command.args(arguments).arg(sources().join(source)).arg("-o").arg(&made);
    if compiler == "cc" {
        let library = library();
        command.arg("-L").arg(library.parent().expect("a path with a directory"));
        command.args([&format!("-l:{NAME}"), "-lpthread"]);
    }
    let output = command.output().unwrap_or_else(|error| panic!("{compiler}: {error}"));
    assert!(output.status.success(), "{source}: {}", String::from_utf8_lossy(&output.stderr));
    made
}

/// A C program of `tests/clients/hsa`, made in `directory`.
///
/// # Panics
/// When it does not compile.
#[must_use]
pub fn c_program(directory: &Path, name: &str) -> PathBuf {
    compile(directory, name, "cc", &["-O1", "-Wall", "-Wextra", "-Werror"], &format!("{name}.c"))
}

/// The code object of `tests/clients/hsa/kernels.c` for a target, made in `directory`.
///
/// # Panics
/// When it does not compile.
#[must_use]
pub fn code_object(directory: &Path, target: &str) -> PathBuf {
    let clang = std::env::var("STASIS_CLANG").unwrap_or_else(|_| "clang-19".to_owned());
    let processor = format!("-mcpu={target}");
    let arguments = ["--target=amdgcn-amd-amdhsa", &processor, "-O2", "-nogpulib", "-ffreestanding"];
    compile(directory, "kernels.co", &clang, &arguments, "kernels.c")
}
