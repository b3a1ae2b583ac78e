// SPDX-License-Identifier: MIT OR Apache-2.0
//! For build scripts: compiles C kernels once for every target of `queues` that the device compiler supports. For tests:
//! the newest compiler ([`newest`]).
//!
//! The compiler is `STASIS_CLANG` or `clang-19`; what is wrong with it is said in one line, with the package.
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation, clippy::cast_sign_loss))]
#![forbid(unsafe_code)]

pub mod newest;

use queues::target::TARGETS;
use std::ffi::OsString;
use std::fmt::Write;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;
use std::process::ExitCode;

const TRIPLE: &str = "--target=amdgcn-amd-amdhsa";
const FLAGS: [&str; 11] = [
    TRIPLE,
    "-std=c17",
    "-O3",
    "-ffreestanding",
    "-nogpulib",
    "-fno-ident",
    "-mcode-object-version=5",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wl,-s,--build-id=none",
];

/// Of an assembly source: instructions alone, at any address.
const FLAT_FLAGS: [&str; 6] =
    [TRIPLE, "-xassembler", "-nostdlib", "-Werror", "-Wl,--oformat=binary", "-Wl,-Ttext=0"];

/// What a source is compiled to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// C, to a code object.
    Object,
    /// Assembly, to machine code without a file format.
    Flat,
}

impl Kind {
    const fn flags(self) -> &'static [&'static str] {
        match self {
            Kind::Object => &FLAGS,
            Kind::Flat => &FLAT_FLAGS,
        }
    }

    const fn table(self) -> &'static str {
        match self {
            Kind::Object => "OBJECTS",
            Kind::Flat => "MACHINE_CODE",
        }
    }
}

/// The device compiler: `STASIS_CLANG`, else `clang-19`.
#[must_use]
pub fn clang() -> OsString {
    std::env::var_os("STASIS_CLANG").unwrap_or_else(|| OsString::from("clang-19"))
}

/// Compiles `source` (a path relative to the package; one translation unit, so that the object has one metadata note) and writes `<name>.rs` into `OUT_DIR`: a table `OBJECTS` of target
/// names and ELF files. `included` only triggers a new build.
#[must_use]
pub fn embed(name: &str, source: &str, included: &[&str]) -> ExitCode {
    embed_kind(Kind::Object, name, source, included)
}

/// Assembles `source` and writes `<name>.rs` into `OUT_DIR`: a table `MACHINE_CODE` of target names and instructions, which
/// can be anywhere in memory. The source has one section.
#[must_use]
pub fn embed_flat(name: &str, source: &str) -> ExitCode {
    embed_kind(Kind::Flat, name, source, &[])
}

fn embed_kind(kind: Kind, name: &str, source: &str, included: &[&str]) -> ExitCode {
    for file in [source, "build.rs"].iter().chain(included) {
        println!("cargo::rerun-if-changed={file}");
    }
    println!("cargo::rerun-if-env-changed=STASIS_CLANG");
    report(name, build(kind, name, source))
}

/// Writes `<name>.rs` with an empty table in place of what [`embed`] writes: for packages whose kernels were not asked for.
/// It needs no compiler.
#[must_use]
pub fn embed_nothing(name: &str) -> ExitCode {
    embed_none(Kind::Object, name)
}

/// The same in place of [`embed_flat`].
#[must_use]
pub fn embed_nothing_flat(name: &str) -> ExitCode {
    embed_none(Kind::Flat, name)
}

fn embed_none(kind: Kind, name: &str) -> ExitCode {
    println!("cargo::rerun-if-changed=build.rs");
    report(name, out_dir().and_then(|out| write_table(kind, &out, name, &[])))
}

fn report(name: &str, built: Result<(), String>) -> ExitCode {
    match built {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            println!("cargo::error={name}: {why}");
            ExitCode::FAILURE
        }
    }
}

fn out_dir() -> Result<PathBuf, String> {
    Ok(PathBuf::from(std::env::var_os("OUT_DIR").ok_or("cargo set no OUT_DIR")?))
}

fn build(kind: Kind, unit: &str, source: &str) -> Result<(), String> {
    let clang = clang();
    let out = out_dir()?;
    let supported = supported(&clang)?;
    let names: Vec<&str> = TARGETS
        .iter()
        .filter(|target| target.elf_mach != 0 && supported.iter().any(|name| name == target.name))
        .map(|target| target.name)
        .collect();
    if names.is_empty() {
        return Err(format!("{} supports none of our targets; it has {supported:?}", clang.display()));
    }
    // One job a core: cargo's other jobs are waiting for this crate by now.
    let next = std::sync::atomic::AtomicUsize::new(0);
    let failures = std::sync::Mutex::new(Vec::new());
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(name) = names.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
                    if let Err(why) = compile(kind, &clang, name, source, &object(&out, unit, name))
                        && let Ok(mut failures) = failures.lock()
                    {
                        failures.push(why);
                    }
                }
            });
        }
    });
    if let Some(why) = failures.into_inner().unwrap_or_default().into_iter().next() {
        return Err(why);
    }
    write_table(kind, &out, unit, &names)
}

/// The table of the objects that were compiled for these targets.
fn write_table(kind: Kind, out: &Path, unit: &str, names: &[&str]) -> Result<(), String> {
    let mut table = format!("static {}: &[(&str, &[u8])] = &[\n", kind.table());
    for name in names {
        let path = object(out, unit, name);
        writeln!(table, "    ({name:?}, include_bytes!({path:?})),").map_err(|error| error.to_string())?;
    }
    table.push_str("];\n");
    let path = out.join(format!("{unit}.rs"));
    std::fs::write(&path, table).map_err(|error| format!("could not write {}: {error}", path.display()))
}

fn object(out: &Path, unit: &str, name: &str) -> PathBuf {
    out.join(format!("{unit}-{name}.so"))
}

/// The processors that the compiler knows, and at once whether it and its linker are there.
fn supported(clang: &OsString) -> Result<Vec<String>, String> {
    let listing = run(Command::new(clang).args([TRIPLE, "-nogpulib", "--print-supported-cpus"]), clang)?;
    let linker = run(Command::new(clang).arg("-print-prog-name=ld.lld"), clang)?;
    // An unknown program is echoed back without a directory.
    if !Path::new(linker.trim()).is_absolute() {
        return Err(format!(
            "{} finds no ld.lld: install package lld-19 (`cargo xtask setup`)",
            clang.display()
        ));
    }
    let names: Vec<String> =
        listing.split_whitespace().filter(|word| word.starts_with("gfx")).map(str::to_owned).collect();
    if names.is_empty() {
        return Err(format!(
            "{} was built without the AMDGPU target: use clang 19 or newer",
            clang.display()
        ));
    }
    Ok(names)
}

fn compile(kind: Kind, clang: &OsString, name: &str, source: &str, object: &Path) -> Result<(), String> {
    let mut command = Command::new(clang);
    command.args(kind.flags()).arg(format!("-mcpu={name}")).arg(source).arg("-o").arg(object);
    run(&mut command, clang).map(drop)
}

fn run(command: &mut Command, clang: &OsString) -> Result<String, String> {
    let output = command.output().map_err(|error| {
        format!(
            "{} could not be started ({error}): install packages clang-19 and lld-19 (`cargo xtask setup`) \
             or set STASIS_CLANG",
            clang.display()
        )
    })?;
    // Lists of processors go to the error stream.
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.success() {
        return Ok(said);
    }
    // cargo::error takes one line.
    Err(format!("{command:?} failed ({}): {}", output.status, said.trim().replace('\n', " | ")))
}
