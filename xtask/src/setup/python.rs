// SPDX-License-Identifier: MIT OR Apache-2.0
//! Private Pythons: virtual environments with pinned packages, for the clients and peers that are written in Python.
//!
//! INVARIANT: every installed file has its hash in a file of this repository, the system's Python is not changed, and
//! an environment counts as complete only when its stamp, which is written last, names its requirements and its Python.

use super::announce;
use super::packages;
use super::process;
use anyhow::Context;
use anyhow::Result;
use std::fs;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;

/// The client that tests the embedding server.
const CLIENT: &str = include_str!("pinned/client.txt");
/// The newest compiler that kernels are tested with.
const TRITON: &str = include_str!("pinned/triton.txt");
/// The compiler before it, which the Python package works with, too.
const TRITON_BEFORE: &str = include_str!("pinned/triton-before.txt");
/// The KFD clients that are written in Python.
const CLIENTS: &str = include_str!("pinned/clients.txt");
/// The peers in the benchmarks of the embedding server.
const BENCH: &str = include_str!("pinned/bench.txt");
/// What builds the Python package.
const WHEEL: &str = include_str!("pinned/wheel.txt");
/// Ray, which the Python package's actors run on.
const RAY: &str = include_str!("pinned/ray.txt");
/// A server of S3's interface, which stores are tested with.
const S3: &str = include_str!("pinned/s3.txt");
/// What the Python package needs, and its tests are run with.
const PACKAGE: &str = include_str!("pinned/package.txt");
/// What makes a site of the Python package's documentation.
const DOCS: &str = include_str!("pinned/docs.txt");
/// What looks for misspelt words.
const CHECKS: &str = include_str!("pinned/checks.txt");

/// The stamp, which is written last.
const STAMP: &str = "stasis-stamp";

/// Prints the version, or fails where a virtual environment cannot be made or the pinned packages do not run.
const PROBE: &str = "import sys, venv, ensurepip\n\
                     assert sys.version_info >= (3, 11)\n\
                     print('%d.%d' % sys.version_info[:2])";

/// The Python with the stock client, made at `private`/python if it is not there.
///
/// # Errors
/// No Python 3.11 or newer can be had, or a package could not be fetched or has another hash.
pub fn client(private: &Path) -> Result<PathBuf> {
    let what = "the client openai and what it needs, 14 packages, 6 MB";
    environment(&private.join("python"), CLIENT, what, "with --without-model")
}

/// The Python with the newest compiler, made at `private`/triton if it is not there.
///
/// # Errors
/// As [`client`].
pub fn triton(private: &Path) -> Result<PathBuf> {
    let what = "the compiler triton, 1 package, 286 MB (1.1 GB unpacked)";
    environment(&private.join("triton"), TRITON, what, "with --without-triton")
}

/// The Python with the compiler before the newest, made at `private`/triton-before if it is not there.
///
/// # Errors
/// As [`client`].
pub fn triton_before(private: &Path) -> Result<PathBuf> {
    let what = "the compiler before it, triton 3.8, 1 package, 286 MB (1.1 GB unpacked)";
    environment(&private.join("triton-before"), TRITON_BEFORE, what, "without --all")
}

/// The Python with KFD clients, made at `private`/clients-python if it is not there.
///
/// # Errors
/// As [`client`].
pub fn clients(private: &Path) -> Result<PathBuf> {
    let what = "tinygrad, IREE and what their tests need, 14 packages, 128 MB (630 MB unpacked)";
    environment(&private.join("clients-python"), CLIENTS, what, "`cargo xtask test --without-clients`")
}

/// The Python with Ray, made at `private`/ray if it is not there. It has no numpy.
///
/// # Errors
/// As [`client`].
pub fn ray(private: &Path) -> Result<PathBuf> {
    let what = "Ray and what it needs, 17 packages, 78 MB (270 MB unpacked)";
    environment(&private.join("ray"), RAY, what, "`cargo xtask test --without-clients`")
}

/// The Python with a server of S3's interface, made at `private`/s3 if it is not there.
///
/// # Errors
/// As [`client`].
pub fn s3(private: &Path) -> Result<PathBuf> {
    let what = "moto, a server of S3's interface, 27 packages, 32 MB (140 MB unpacked)";
    environment(&private.join("s3"), S3, what, "without `cargo xtask test`")
}

/// The Python with the benchmarks' peers, made at `private`/bench-python if it is not there.
///
/// # Errors
/// As [`client`].
pub fn bench(private: &Path) -> Result<PathBuf> {
    environment(
        &private.join("bench-python"),
        BENCH,
        "the peer onnxruntime and what it needs, 8 packages, 49 MB",
        "with --without-model",
    )
}

/// The Python that builds the Python package, made at `private`/wheel-python if it is not there.
///
/// # Errors
/// As [`client`].
pub fn wheel(private: &Path) -> Result<PathBuf> {
    let what = "maturin and wheel, which build the Python package, 3 packages, 9 MB";
    environment(&private.join("wheel-python"), WHEEL, what, "without `cargo xtask wheel`")
}

/// A Python that has `wheel`, what its tests need, and what the `others` have (by name), made at `private`/package-python if it is not there.
///
/// # Errors
/// As [`client`]; the wheel could not be installed.
pub fn package(private: &Path, wheel: &Path, others: &[(&str, Option<&Path>)]) -> Result<PathBuf> {
    let python = package_without_wheel(private)?;
    install_wheel(&python, wheel)?;
    // They are too large to have them twice.
    let packages = packages_of(&python)?;
    for (name, other) in others {
        let list = packages.join(format!("{name}.pth"));
        let other = other.map(packages_of).transpose()?;
        let text = other.map_or(String::new(), |path| format!("{}\n", path.display()));
        fs::write(&list, text).with_context(|| format!("Could not write {}", list.display()))?;
    }
    Ok(python)
}

/// The same before it has the wheel.
///
/// # Errors
/// As [`client`].
pub fn package_without_wheel(private: &Path) -> Result<PathBuf> {
    let what = "numpy, pytest, mypy, mpi4py and the kernel of notebooks for the tests of the Python package, 41 packages, 49 MB";
    environment(&private.join("package-python"), PACKAGE, what, "`cargo nextest run` alone")
}

/// Installs a wheel, in the place of one of the same version.
fn install_wheel(python: &Path, wheel: &Path) -> Result<()> {
    process::output(pip(python, "install").args(["--no-index", "--force-reinstall"]).arg(wheel)).map(drop)
}

/// As [`package`] in a Python that is newer than the others', without what they have, made at `private`/package-newer-python;
/// `None` if there is none: of the name that STASIS_NEWER_PYTHON gives, on PATH, or pyenv's.
///
/// # Errors
/// As for [`package`].
pub fn package_on_newer(private: &Path, wheel: &Path) -> Result<Option<PathBuf>> {
    let Some(base) = newer() else { return Ok(None) };
    let what = format!("the same for Python {}", base.1);
    let directory = private.join("package-newer-python");
    let python = environment_of(|| Ok(base), &directory, PACKAGE, &what, "without --all")?;
    install_wheel(&python, wheel)?;
    Ok(Some(python))
}

/// A Python that is newer than the first on PATH, and its version.
fn newer() -> Option<(PathBuf, String)> {
    let named = std::env::var_os("STASIS_NEWER_PYTHON").map(PathBuf::from);
    let on_path = ["python3.14", "python3.13", "python3.12"].into_iter().filter_map(process::find);
    let home = std::env::var_os("PYENV_ROOT").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".pyenv")));
    let versions = home.and_then(|home| fs::read_dir(home.join("versions")).ok()).into_iter().flatten();
    let of_pyenv = versions.flatten().map(|entry| entry.path().join("bin/python3"));
    let numbers = |version: &str| -> Vec<u32> { version.split('.').flat_map(str::parse).collect() };
    let usual = numbers(&base()?.1);
    let found = named.into_iter().chain(on_path).chain(of_pyenv).filter_map(|python| {
        let version = version(&python).ok()?;
        (numbers(&version) > usual).then_some((python, version))
    });
    found.max_by_key(|(_, version)| numbers(version))
}

/// Where a virtual environment has its packages.
fn packages_of(python: &Path) -> Result<PathBuf> {
    let asked = "import sysconfig; print(sysconfig.get_path('purelib'))";
    Ok(process::output(Command::new(python).args(["-I", "-c", asked]))?.trim().into())
}

/// The program `mkdocs`, in an environment made at `private`/docs-python if it is not there.
///
/// # Errors
/// As [`client`].
pub fn mkdocs(private: &Path) -> Result<PathBuf> {
    let what = "mkdocs and what it needs, 30 packages, 60 MB (170 MB unpacked)";
    let python = environment(&private.join("docs-python"), DOCS, what, "without `cargo xtask python-docs`")?;
    Ok(python.with_file_name("mkdocs"))
}

/// The directory of the programs `typos` and `kubernetes-validate`, in an environment made at `private`/checks if it is not there.
///
/// # Errors
/// As [`client`].
pub fn checkers(private: &Path) -> Result<PathBuf> {
    let what = "the spelling checker typos and Kubernetes' schemas, 11 packages, 12 MB (130 MB unpacked)";
    let python = environment(&private.join("checks"), CHECKS, what, "without `cargo xtask check`")?;
    Ok(python.with_file_name(""))
}

/// Downloads the wheel that a file of requirements pins into `directory`.
///
/// # Errors
/// It could not be fetched, or has another hash.
pub fn download(python: &Path, requirements: &Path, directory: &Path) -> Result<()> {
    let mut pip = pinned(python, "download");
    pip.arg("--dest").arg(directory).arg("-r").arg(requirements);
    process::retried(|| process::output(&mut pip)).map(drop)
}

/// pip with only pinned wheels; the machine's settings say where it fetches them from.
fn pinned(python: &Path, verb: &str) -> Command {
    let mut command = pip(python, verb);
    command.args(["--require-hashes", "--only-binary", ":all:", "--retries", "5"]);
    command
}

/// pip for what is named, without what that depends on.
fn pip(python: &Path, verb: &str) -> Command {
    let mut command = Command::new(python);
    command.args([
        "-I",
        "-m",
        "pip",
        verb,
        "--quiet",
        "--no-input",
        "--disable-pip-version-check",
        "--no-deps",
    ]);
    command
}

/// The Python of a virtual environment with these packages, which `option` leaves out. Remains of an earlier or
/// interrupted run are replaced.
fn environment(directory: &Path, requirements: &str, what: &str, option: &str) -> Result<PathBuf> {
    let usual = || {
        super::locked(super::PACKAGES, |_| packages::install_python())?;
        base().context("python3 vanished after its installation")
    };
    environment_of(usual, directory, requirements, what, option)
}

/// As [`environment`], of the Python, with its version, that `base` gives.
fn environment_of(
    base: impl FnOnce() -> Result<(PathBuf, String)>,
    directory: &Path,
    requirements: &str,
    what: &str,
    option: &str,
) -> Result<PathBuf> {
    let python = directory.join("bin/python");
    if is_made(directory, &python, requirements) {
        return Ok(python);
    }
    let (base, version) = base()?;
    announce(format_args!("installing {what}, into {}", directory.display()));
    // An environment contains its own path, so it cannot be made elsewhere and renamed.
    process::remove(directory)?;
    process::output(Command::new(&base).args(["-I", "-m", "venv"]).arg(directory))?;
    let list = directory.join("requirements.txt");
    fs::write(&list, requirements).with_context(|| format!("Could not write {}", list.display()))?;
    let mut pip = pinned(&python, "install");
    pip.arg("-r").arg(&list);
    process::retried(|| process::output(&mut pip))
        .with_context(|| format!("Could not install {what}; run again, or {option}"))?;
    let stamp = directory.join(STAMP);
    fs::write(&stamp, stamp_text(requirements, &version))
        .with_context(|| format!("Could not write {}", stamp.display()))?;
    Ok(python)
}

fn is_made(directory: &Path, python: &Path, requirements: &str) -> bool {
    // The version is in the stamp: after an upgrade of the system's Python an environment has no packages.
    version(python).is_ok_and(|version| {
        fs::read_to_string(directory.join(STAMP)).is_ok_and(|text| text == stamp_text(requirements, &version))
    })
}

fn stamp_text(requirements: &str, version: &str) -> String {
    format!("python {version}\nrequirements {}\n", blake3::hash(requirements.as_bytes()).to_hex())
}

/// A Python that can make virtual environments, and its version: the first on PATH, else the system's.
pub(super) fn base() -> Option<(PathBuf, String)> {
    let candidates = [process::find("python3"), Some(PathBuf::from("/usr/bin/python3"))];
    let mut candidates = candidates.into_iter().flatten();
    candidates.find_map(|python| version(&python).ok().map(|version| (python, version)))
}

fn version(python: &Path) -> Result<String> {
    Ok(process::output(Command::new(python).args(["-I", "-c", PROBE]))?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn every_requirement_is_pinned_and_hashed_and_names_no_host() {
        for text in [CLIENT, TRITON, CLIENTS, RAY, S3, BENCH, WHEEL, PACKAGE, super::super::model::WHEEL] {
            let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
            let mut unhashed = None;
            for line in &lines {
                if line.starts_with("    --hash=sha256:") {
                    unhashed = None;
                } else {
                    assert_eq!(unhashed, None, "has no hash");
                    assert!(line.contains("==") && line.ends_with(" \\"), "{line}");
                    unhashed = Some(*line);
                }
            }
            assert!(unhashed.is_none() && !lines.is_empty(), "{unhashed:?}");
            assert!(!text.contains("://"));
        }
    }

    #[test]
    fn is_made_wants_the_stamp_of_these_requirements_and_of_the_python_that_is_there() {
        let directory = std::env::temp_dir().join(format!("stasis-python-{}", std::process::id()));
        let python = directory.join("python");
        fs::create_dir_all(&directory).unwrap();
        let becomes = |version: &str| {
            fs::write(&python, format!("#!/bin/sh\necho {version}\n")).unwrap();
            fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
        };
        becomes("3.11");
        assert!(!is_made(&directory, &python, "a==1"), "half made: no stamp");
        fs::write(directory.join(STAMP), stamp_text("a==1", "3.11")).unwrap();
        assert!(is_made(&directory, &python, "a==1"));
        assert!(!is_made(&directory, &python, "a==2"), "made of other requirements");
        becomes("3.13");
        assert!(!is_made(&directory, &python, "a==1"), "made by another Python");
        process::remove(&directory).unwrap();
        assert!(!is_made(&directory, &python, "a==1"), "not there");
    }
}
