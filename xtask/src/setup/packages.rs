// SPDX-License-Identifier: MIT OR Apache-2.0
//! The Debian packages that the build, the tests and the benchmarks need.
//!
//! A package counts as missing when the files that are used of it are missing, so that a toolchain installed by other
//! means is not replaced.

use super::announce;
use super::process;
use super::python;
use anyhow::Context;
use anyhow::Result;
use anyhow::bail;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;

/// The device compiler's program name.
pub const CLANG: &str = "clang-19";
/// The device linker's program name.
pub const LLD: &str = "ld.lld-19";

enum Probe {
    Program(&'static str),
    File(&'static str),
    /// In one of the directories of the system's libraries.
    Library(&'static str),
    Libclang,
    /// A Python that can make virtual environments.
    Python,
}

impl Probe {
    fn found(&self) -> bool {
        match self {
            Probe::Program(name) => process::find(name).is_some(),
            Probe::File(path) => Path::new(path).exists(),
            Probe::Library(name) => library(name),
            Probe::Libclang => libclang_dir().is_some(),
            Probe::Python => python::base().is_some(),
        }
    }
}

/// Whether the dynamic linker would find a library, as its cache says it.
fn library(soname: &str) -> bool {
    let ldconfig = process::find("ldconfig").unwrap_or_else(|| PathBuf::from("ldconfig"));
    let cache = process::output(Command::new(ldconfig).arg("-p")).unwrap_or_default();
    cache.split_whitespace().any(|word| word == soname)
}

struct Package {
    name: &'static str,
    purpose: &'static str,
    probe: Probe,
}

/// What every build needs.
const BUILD: [Package; 2] = [
    Package { name: "clang-19", purpose: "device kernels, AMDGPU target", probe: Probe::Program(CLANG) },
    Package { name: "lld-19", purpose: "links device kernels", probe: Probe::Program(LLD) },
];

/// What only tests need.
const TESTS: [Package; 8] = [
    Package {
        name: "llvm-19",
        purpose: "assembler the decoder is tested against",
        probe: Probe::Program("llvm-mc-19"),
    },
    Package { name: "libclang-19-dev", purpose: "reads headers for bindgen", probe: Probe::Libclang },
    Package {
        name: "libhsa-runtime-dev",
        purpose: "the vendor's HSA headers",
        probe: Probe::File("/usr/include/hsa/hsa.h"),
    },
    Package {
        name: "libdrm-dev",
        purpose: "DRM headers",
        probe: Probe::File("/usr/include/libdrm/amdgpu_drm.h"),
    },
    Package {
        name: "linux-libc-dev",
        purpose: "KFD headers",
        probe: Probe::File("/usr/include/linux/kfd_ioctl.h"),
    },
    Package { name: "runc", purpose: "containers that tests freeze", probe: Probe::Program("runc") },
    Package {
        name: "podman",
        purpose: "a container engine that archives and restores them (20 MB with runc)",
        probe: Probe::Program("podman"),
    },
    Package {
        name: "openmpi-bin",
        purpose: "MPI jobs that are checkpointed as one (6 MB with its libraries)",
        probe: Probe::Program("mpirun"),
    },
];

/// What only tests of unmodified HIP programs need.
const CLIENTS: [Package; 1] = [Package {
    name: "clang-tools-19",
    purpose: "bundles the device code of HIP programs (9 MB, 44 MB unpacked)",
    probe: Probe::File("/usr/lib/llvm-19/bin/clang-offload-bundler"),
}];

/// What the private Pythons need, if no Python on the machine suffices.
const PYTHON: [Package; 2] = [
    Package { name: "python3", purpose: "runs the stock client", probe: Probe::Python },
    Package { name: "python3-venv", purpose: "keeps its packages apart", probe: Probe::Python },
];

/// What only benchmarks need: the peers of `bench isa`.
const PEERS: [Package; 3] = [
    Package {
        name: "libopenblas0-pthread",
        purpose: "matrix multiplication that benchmarks compare with",
        probe: Probe::Library("libopenblas.so.0"),
    },
    Package {
        name: "ocl-icd-libopencl1",
        purpose: "OpenCL's loader, for PoCL",
        probe: Probe::Library("libOpenCL.so.1"),
    },
    Package {
        name: "pocl-opencl-icd",
        purpose: "OpenCL on the CPU that benchmarks compare with",
        probe: Probe::File("/etc/OpenCL/vendors/pocl.icd"),
    },
];

/// What only tests for aarch64 need.
const AARCH64: [Package; 3] = [
    Package {
        name: "gcc-aarch64-linux-gnu",
        purpose: "links programs for aarch64 (with its C library 60 MB)",
        probe: Probe::Program("aarch64-linux-gnu-gcc"),
    },
    // The compiler only recommends it.
    Package {
        name: "libc6-dev-arm64-cross",
        purpose: "headers for the C code of crates for aarch64",
        probe: Probe::File("/usr/aarch64-linux-gnu/include/stdlib.h"),
    },
    Package {
        name: "qemu-user",
        purpose: "runs programs for aarch64",
        probe: Probe::Program("qemu-aarch64"),
    },
];

/// The directory that holds libclang: LIBCLANG_PATH if it does, else Debian's.
pub fn libclang_dir() -> Option<PathBuf> {
    std::env::var_os("LIBCLANG_PATH")
        .map(PathBuf::from)
        .into_iter()
        .chain(["/usr/lib/llvm-19/lib", "/usr/lib/x86_64-linux-gnu"].map(PathBuf::from))
        .find(|dir| dir.join("libclang.so").exists() || dir.join("libclang-19.so").exists())
}

/// Installs with apt-get what is missing for the build, and for the tests if they are wanted.
///
/// # Errors
/// Lists the missing packages when they cannot be installed here.
pub fn install_missing(with_tests: bool) -> Result<()> {
    let tests: &[Package] = if with_tests { &TESTS } else { &[] };
    install_of(BUILD.iter().chain(tests))
}

/// Installs with apt-get what is missing for a private Python.
///
/// # Errors
/// Lists the missing packages when they cannot be installed here.
pub fn install_python() -> Result<()> {
    install_of(PYTHON.iter())
}

/// Installs with apt-get what is missing for compiling HIP programs.
///
/// # Errors
/// Lists the missing packages when they cannot be installed here.
pub fn install_clients() -> Result<()> {
    install_of(CLIENTS.iter())
}

/// Installs with apt-get what is missing of what benchmarks compare with.
///
/// # Errors
/// Lists the missing packages when they cannot be installed here.
pub fn install_peers() -> Result<()> {
    install_of(PEERS.iter())
}

/// Installs with apt-get what is missing for programs for aarch64.
///
/// # Errors
/// Lists the missing packages when they cannot be installed here.
pub fn install_aarch64() -> Result<()> {
    install_of(AARCH64.iter())
}

fn install_of<'p>(packages: impl Iterator<Item = &'p Package>) -> Result<()> {
    let missing: Vec<&Package> = packages.filter(|package| !package.probe.found()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = missing.iter().map(|package| package.name).collect();
    let list = names.join(" ");
    if process::find("apt-get").is_none() {
        bail!(
            "This system has no apt-get; install what corresponds to Debian's packages {list}, then run again"
        );
    }
    if !process::is_root() {
        bail!("Packages are missing and only root can install them; run `sudo apt-get install {list}`");
    }
    for package in &missing {
        announce(format_args!("installing Debian package {} ({})", package.name, package.purpose));
    }
    if !known(&names) {
        update()?;
        install(&names)?;
    } else if let Err(first) = install(&names) {
        // Package lists that are older than the mirror name files that do not exist any more.
        announce(format_args!("{first:#}; refreshing the package lists and trying again"));
        update()?;
        install(&names)?;
    }
    let still: Vec<&str> = missing.iter().filter(|p| !p.probe.found()).map(|p| p.name).collect();
    if !still.is_empty() {
        bail!("apt-get installed {} but what they should bring is not there", still.join(" "));
    }
    Ok(())
}

fn known(names: &[&str]) -> bool {
    names.iter().all(|name| {
        process::output(Command::new("apt-cache").args(["policy", name]))
            .is_ok_and(|text| text.contains("Candidate:") && !text.contains("Candidate: (none)"))
    })
}

fn apt() -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive");
    command.args(["-q", "-o", "Acquire::Retries=3", "-o", "DPkg::Lock::Timeout=300"]);
    command
}

fn update() -> Result<()> {
    announce("refreshing the package lists (apt-get update)");
    process::shown(apt().arg("update")).context("Could not refresh the package lists")
}

fn install(names: &[&str]) -> Result<()> {
    process::shown(apt().args(["install", "-y", "--no-install-recommends"]).args(names))
        .with_context(|| format!("Could not install {}", names.join(" ")))
}
