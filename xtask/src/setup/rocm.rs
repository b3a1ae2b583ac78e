// SPDX-License-Identifier: MIT OR Apache-2.0
//! Private prefixes with the vendor's runtimes as Debian packages them, for tests that run unmodified programs on the
//! software device.
//!
//! A program must never get an older C library than the machine's own: the library that `stasis run` preloads was linked
//! with the machine's. So `base`, with the C library of the packages' release, is only there where that one is newer, and
//! `bin/rocminfo` and `bin/hipcc` start and link programs with it then.
//!
//! INVARIANT: the packages under test have their hashes in this repository, their dependencies are checked by apt; nothing
//! of the system is replaced; a prefix appears by one rename and counts as complete only with its stamp.

use super::announce;
use super::apt;
use super::private;
use super::process;
use anyhow::Context;
use anyhow::Result;
use anyhow::ensure;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;

/// A runtime of a Debian release.
#[derive(Debug)]
pub struct Release {
    name: &'static str,
    suite: apt::Suite,
    /// The release's C library: the minor number of version 2.
    glibc: u32,
    /// A package a line: name, and for those under test version and SHA-256.
    packages: &'static str,
    what: &'static str,
    /// Where the device libraries are, if HIP programs can be compiled.
    device_libraries: Option<&'static str>,
}

/// ROCr 5.2.3, which knows no GPU newer than gfx10.
pub const ROCM_5_2: Release = Release {
    name: "rocm-5.2",
    suite: apt::Suite::named("bookworm"),
    glibc: 36,
    packages: include_str!("pinned/rocm-5.2.txt"),
    what: "rocminfo, ROCr and HIP 5.2.3",
    device_libraries: None,
};

/// ROCr 6.1.2 with HIP 5.7.1.
pub const ROCM_6_1: Release = Release {
    name: "rocm-6.1",
    suite: apt::Suite::named("trixie"),
    glibc: 41,
    packages: include_str!("pinned/rocm-6.1.txt"),
    what: "rocminfo and ROCr 6.1.2, HIP 5.7.1",
    device_libraries: Some("usr/lib/llvm-17/lib/clang/17/amdgcn/bitcode"),
};

/// What comes with the C library.
const BASE: [&str; 3] = ["libc6", "libgcc-s1", "libstdc++6"];
/// What nobody reads here.
const LEFT_OUT: [&str; 6] = [
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/lintian",
    "usr/share/info",
    "usr/share/bug",
];
const LIBRARIES: [&str; 2] = ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"];
const LOADER: &str = "ld-linux-x86-64.so.2";

/// The release's prefix, made below `private` if it is not there.
///
/// # Errors
/// The packages could not be downloaded, or one under test is another one than the tests know.
pub fn find_or_install(private: &Path, release: &'static Release) -> Result<PathBuf> {
    let Release { name, ref suite, what, .. } = *release;
    let (prefix, with_base) = (private.join(name), needs_base(release)?);
    let stamp = stamp_text(release, with_base);
    if private::is_complete(&prefix, &stamp) {
        // They may have been written by an older version of this program.
        write_programs(&prefix, release)?;
        return Ok(prefix);
    }
    let packages = parse(release.packages);
    let names: Vec<String> = packages
        .iter()
        .map(|package| package.name)
        .chain(if with_base { BASE.as_slice() } else { &[] }.iter().copied())
        .map(str::to_owned)
        .collect();
    announce(format_args!(
        "installing {what} from Debian {} ({} packages, 60 MB, 250 MB unpacked) into {}; the system's stay as they are",
        suite.name,
        names.len(),
        prefix.display()
    ));
    let download = private.join(format!("{name}.download"));
    let files = apt::fetch(&download, suite, |_| Ok(names.clone())).with_context(|| {
        format!(
            "Could not download {what}; run again when Debian's mirror can be reached, or `cargo xtask test --without-clients`"
        )
    })?;
    let scratch = private.join(format!("{name}.new"));
    process::remove(&scratch)?;
    for (file, wanted) in files.iter().filter_map(|file| Some((file, find(&packages, file)?))) {
        check(file, wanted)?;
    }
    let (base, others): (Vec<PathBuf>, Vec<PathBuf>) =
        files.into_iter().partition(|file| BASE.contains(&package_of(file)));
    apt::unpack(&others, &scratch.join("root"))?;
    if with_base {
        apt::unpack(&base, &scratch.join("base"))?;
    }
    for below in LEFT_OUT {
        process::remove(&scratch.join("root").join(below))?;
        process::remove(&scratch.join("base").join(below))?;
    }
    write_programs(&scratch, release)?;
    private::complete(&scratch, &prefix, &stamp)?;
    // The directory only helps a later run after a failure; if it stays it does no harm.
    let _ = fs::remove_dir_all(&download);
    Ok(prefix)
}

/// Whether the machine's C library is older than the release's.
fn needs_base(release: &Release) -> Result<bool> {
    let text = process::output(Command::new("getconf").arg("GNU_LIBC_VERSION"))
        .context("Could not ask for the version of the machine's C library")?;
    let own = minor(&text).with_context(|| format!("getconf names no version of glibc but {text:?}"))?;
    Ok(own < release.glibc)
}

/// The minor number in `glibc 2.36`.
fn minor(text: &str) -> Option<u32> {
    text.trim().strip_prefix("glibc 2.")?.split('.').next()?.parse().ok()
}

fn stamp_text(release: &Release, with_base: bool) -> String {
    let hash = blake3::hash(release.packages.as_bytes()).to_hex();
    format!("packages {hash}\nbase {with_base}\n")
}

/// A line of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Package<'l> {
    name: &'l str,
    /// Version and SHA-256.
    pinned: Option<(&'l str, &'l str)>,
}

fn parse(list: &str) -> Vec<Package<'_>> {
    let lines = list.lines().filter(|line| !line.starts_with('#'));
    let mut packages = Vec::new();
    for mut words in lines.map(str::split_whitespace) {
        if let Some(name) = words.next() {
            packages.push(Package { name, pinned: words.next().zip(words.next()) });
        }
    }
    packages
}

/// `rocminfo` of `rocminfo_6.1.2-2_amd64.deb`.
fn package_of(file: &Path) -> &str {
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.split('_').next().unwrap_or_default()
}

fn find<'l>(packages: &[Package<'l>], file: &Path) -> Option<Package<'l>> {
    packages.iter().copied().find(|package| package.name == package_of(file))
}

/// Whether a package under test is the one that the tests know.
fn check(file: &Path, package: Package<'_>) -> Result<()> {
    let Package { name, pinned: Some((version, hash)) } = package else { return Ok(()) };
    let text = process::output(Command::new("sha256sum").arg(file))?;
    let found = text.split_whitespace().next().unwrap_or_default();
    ensure!(
        found == hash,
        "{} has SHA-256 {found}, not {hash} of {name} {version}, which the tests know; \
         if Debian has a newer one, run the tests with it and change xtask/src/setup/pinned",
        file.display()
    );
    Ok(())
}

/// Where libLLVM looks for what it needs: `../lib` from its own directory. It says so by a search path (`DT_RUNPATH`) that
/// the program's does not add to, so it would find the machine's libraries or none.
const LLVM_LIBRARIES: &str = "root/usr/lib/lib";

/// Writes the programs that start and compile with the prefix's libraries.
fn write_programs(prefix: &Path, release: &Release) -> Result<()> {
    let link = prefix.join(LLVM_LIBRARIES);
    if !link.exists() {
        symlink("x86_64-linux-gnu", &link).with_context(|| format!("Could not make {}", link.display()))?;
    }
    let loader = loader(prefix)?;
    let bin = prefix.join("bin");
    private::write_program(
        &bin.join("rocminfo"),
        &start("root/usr/bin/rocminfo", prefix, loader.as_deref()),
    )?;
    // rocminfo 5 asks `lsmod`, which a machine or container without modules lacks.
    private::write_program(&bin.join("lsmod"), "#!/bin/sh\nexec cat /proc/modules\n")?;
    match release.device_libraries {
        None => Ok(()),
        Some(libraries) => {
            private::write_program(&bin.join("hipcc"), &compile(libraries, prefix, loader.as_deref()))
        }
    }
}

/// The release's program loader, below the prefix, if there is a base.
fn loader(prefix: &Path) -> Result<Option<String>> {
    if !prefix.join("base").exists() {
        return Ok(None);
    }
    let mut places = LIBRARIES.iter().map(|directory| format!("base/{directory}/{LOADER}"));
    let found = places.find(|place| prefix.join(place).exists());
    found.map(Some).with_context(|| format!("libc6 brought no {LOADER}"))
}

/// The directories of libraries, as a shell sees them from a program of the prefix.
fn libraries(prefix: &Path) -> String {
    let all = ["base", "root"].into_iter().flat_map(|part| LIBRARIES.map(|below| format!("{part}/{below}")));
    let there = all.filter(|directory| prefix.join(directory).exists());
    there.map(|directory| format!("$prefix/{directory}")).collect::<Vec<_>>().join(":")
}

/// The prefix's place is found anew, so that a repository can be moved, and without another program: what is preloaded
/// for the one that is started would be preloaded into each.
fn preamble(prefix: &Path) -> String {
    format!(
        "#!/bin/sh\nprefix=$(cd \"${{0%/*}}/..\" && pwd -P) || exit\nlibraries=\"{}\"\n",
        libraries(prefix)
    )
}

fn start(program: &str, prefix: &Path, loader: Option<&str>) -> String {
    let run = match loader {
        Some(loader) => format!("exec \"$prefix/{loader}\" --library-path \"$libraries\""),
        None => "LD_LIBRARY_PATH=\"$libraries\" exec".to_owned(),
    };
    format!(
        "{}# The machine's own lsmod is preferred.\nexport PATH=\"$PATH:$prefix/bin\"\n{run} \"$prefix/{program}\" \"$@\"\n",
        preamble(prefix)
    )
}

/// Compiles and links HIP programs. What it links starts by itself, with the prefix's libraries: the search path is the
/// kind that libraries of libraries are found by, too (`DT_RPATH`).
fn compile(device_libraries: &str, prefix: &Path, loader: Option<&str>) -> String {
    let interpreter = loader.map(|loader| format!(",--dynamic-linker=$prefix/{loader}")).unwrap_or_default();
    format!(
        "{}exec \"${{STASIS_CLANG:-clang-19}}\" -x hip -Wno-unused-command-line-argument \\\n  \
         --rocm-path=\"$prefix/root/usr\" --rocm-device-lib-path=\"$prefix/root/{device_libraries}\" \\\n  \
         -isystem \"$prefix/root/usr/include\" \"$@\" \\\n  \
         -L\"$prefix/root/usr/lib/x86_64-linux-gnu\" -lamdhip64 -lstdc++ -lm \\\n  \
         \"-Wl,--allow-shlib-undefined,--disable-new-dtags,-rpath,$libraries{interpreter}\"\n",
        preamble(prefix)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_under_test_have_versions_and_hashes_and_no_host_is_named() {
        for release in [&ROCM_5_2, &ROCM_6_1] {
            let packages = parse(release.packages);
            for under_test in
                ["rocminfo", "libhsa-runtime64-1", "libhsakmt1", "libamdhip64-5", "libamd-comgr2"]
            {
                let package = packages.iter().find(|package| package.name == under_test);
                let (_, hash) = package.and_then(|package| package.pinned).unwrap();
                assert!(hash.len() == 64 && hash.bytes().all(|digit| digit.is_ascii_hexdigit()), "{hash}");
            }
            assert!(packages.iter().all(|package| !BASE.contains(&package.name)));
            assert!(!release.packages.contains("://"));
        }
    }

    #[test]
    fn file_that_is_another_one_is_refused_by_name() {
        let file = std::env::temp_dir().join(format!("stasis-rocm_{}_amd64.deb", std::process::id()));
        fs::write(&file, "").unwrap();
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(package_of(&file), "stasis-rocm");
        let package = |hash| Package { name: "stasis-rocm", pinned: Some(("1", hash)) };
        check(&file, package(empty)).unwrap();
        let error = check(&file, package("00")).unwrap_err().to_string();
        assert!(error.contains(empty) && error.contains("stasis-rocm 1"), "{error}");
        fs::remove_file(&file).unwrap();
    }

    #[test]
    fn minor_reads_what_getconf_prints() {
        assert_eq!(minor("glibc 2.36\n"), Some(36));
        assert_eq!(minor("glibc 2.41.9000"), Some(41));
        assert_eq!(minor("musl"), None);
    }

    #[test]
    fn programs_use_the_loader_and_the_c_library_of_the_base_only_if_there_is_one() {
        let prefix = std::env::temp_dir().join(format!("stasis-prefix-{}", std::process::id()));
        fs::create_dir_all(prefix.join("root/usr/lib/x86_64-linux-gnu")).unwrap();
        write_programs(&prefix, &ROCM_6_1).unwrap();
        assert!(prefix.join("root/usr/lib/lib").canonicalize().unwrap().ends_with("x86_64-linux-gnu"));
        let read = |name: &str| fs::read_to_string(prefix.join("bin").join(name)).unwrap();
        assert!(!read("rocminfo").contains(LOADER) && !read("hipcc").contains(LOADER));
        assert!(read("rocminfo").contains("libraries=\"$prefix/root/usr/lib/x86_64-linux-gnu\""));
        fs::create_dir_all(prefix.join("base/usr/lib/x86_64-linux-gnu")).unwrap();
        assert!(write_programs(&prefix, &ROCM_6_1).unwrap_err().to_string().contains(LOADER));
        fs::write(prefix.join("base/usr/lib/x86_64-linux-gnu").join(LOADER), "").unwrap();
        write_programs(&prefix, &ROCM_6_1).unwrap();
        assert!(read("rocminfo").contains(LOADER) && read("hipcc").contains(LOADER));
        assert!(read("rocminfo").contains("libraries=\"$prefix/base/usr/lib/x86_64-linux-gnu:$prefix/root/"));
        process::remove(&prefix).unwrap();
    }
}
