// SPDX-License-Identifier: MIT OR Apache-2.0
//! For tests: the newest compiler that the package registries have, the LLVM inside Triton's wheel.
//!
//! C goes to bitcode by the device compiler, bitcode to objects by the newest LLVM, and `ld.lld-19` links them.
//!
//! INVARIANT: a compiler that is not there is an error that says how to install it, never a pass.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{TRIPLE, run};

/// What the newest compiler generates code for.
pub const PROCESSOR: &str = "gfx1100";

/// A code object, and what made it.
#[derive(Debug)]
pub struct Object {
    /// The ELF file.
    pub file: Vec<u8>,
    /// The revision of the newest LLVM.
    pub revision: String,
}

/// Runs a script with the Python that has Triton (`STASIS_TRITON`, else the one that the setup makes), and answers what it
/// printed. What Triton compiles is kept in `cache`.
///
/// # Errors
/// What was not there, or what the script said when it failed.
pub fn script(path: &Path, arguments: &[PathBuf], cache: &Path) -> Result<String, String> {
    let made = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.stasis/triton/bin/python");
    let python = std::env::var_os("STASIS_TRITON").map_or(made, PathBuf::from);
    if !python.exists() {
        return Err(format!("{} is not there: run `cargo xtask setup`", python.display()));
    }
    let mut command = Command::new(&python);
    command.arg("-I").arg(path).args(arguments).env("TRITON_CACHE_DIR", cache);
    let output = command.output();
    let output = output.map_err(|error| format!("{} could not be started: {error}", python.display()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{command:?} failed ({}): {said}", output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Compiles `sources` with `flags` into one code object for [`PROCESSOR`] and waves of `lanes` (32 or 64) work-items.
/// `place` is a directory for what comes between.
///
/// # Errors
/// What a compiler, the linker or the file system says.
pub fn compile(sources: &[PathBuf], flags: &[&str], lanes: u16, place: &Path) -> Result<Object, String> {
    let clang = crate::clang();
    let mut arguments: Vec<PathBuf> = vec![lanes.to_string().into()];
    let mut objects = Vec::new();
    for source in sources {
        let unit = source.file_stem().ok_or_else(|| format!("{} is no file", source.display()))?;
        let bitcode = place.join(unit).with_extension("bc");
        let mut command = Command::new(&clang);
        command.args([TRIPLE, "-ffreestanding", "-nogpulib", "-emit-llvm", "-c"]).args(flags);
        command.arg(format!("-mcpu={PROCESSOR}")).args((lanes == 64).then_some("-mwavefrontsize64"));
        run(command.arg(source).arg("-o").arg(&bitcode), &clang)?;
        let object = bitcode.with_extension("o");
        arguments.extend([bitcode, object.clone()]);
        objects.push(object);
    }
    let codegen = Path::new(env!("CARGO_MANIFEST_DIR")).join("newest/codegen.py");
    let revision = script(&codegen, &arguments, place)?.trim().to_owned();
    let (linker, linked) = (OsString::from("ld.lld-19"), place.join("linked.so"));
    run(Command::new(&linker).args(["-shared", "-o"]).arg(&linked).args(objects), &linker)?;
    let file =
        std::fs::read(&linked).map_err(|error| format!("{} could not be read: {error}", linked.display()))?;
    Ok(Object { file, revision })
}
