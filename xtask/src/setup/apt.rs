// SPDX-License-Identifier: MIT OR Apache-2.0
//! Debian packages of any release, unpacked to a private directory.
//!
//! apt runs with its own sources, lists and cache below a directory of ours, so that the system's are neither read for
//! packages nor written. The mirror is the one the machine already uses, and apt checks every file against the release's
//! signature. The directory outlives a failure, so that a second run resumes.

use super::announce;
use super::process;
use anyhow::Context;
use anyhow::Result;
use anyhow::bail;
use std::fs;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
const ATTEMPTS: u32 = 3;

/// A suite of Debian's, as its sources name it.
#[derive(Debug)]
pub struct Suite {
    /// `trixie`, or `bookworm-security`, which is in an archive of its own.
    pub name: &'static str,
    /// An architecture whose packages are wanted beside the machine's.
    pub other_architecture: Option<&'static str>,
}

impl Suite {
    /// A suite of which only packages for this machine are wanted.
    pub const fn named(name: &'static str) -> Self {
        Self { name, other_architecture: None }
    }
}

/// Downloads the packages that `names` chooses of a release, through each of the machine's mirrors in turn.
///
/// # Errors
/// The machine is no Debian on x86-64, has no Debian source, or the download failed repeatedly.
pub fn fetch(
    directory: &Path,
    suite: &'static Suite,
    names: impl Fn(&Apt) -> Result<Vec<String>>,
) -> Result<Vec<PathBuf>> {
    if std::env::consts::ARCH != "x86_64" || ["apt-get", "dpkg"].iter().any(|p| process::find(p).is_none()) {
        bail!("Debian's packages can be unpacked on Debian x86-64 only");
    }
    let apt = Apt::prepare(directory, suite)?;
    let mut last = None;
    for mirror in mirrors(suite.name)? {
        for attempt in 1..=ATTEMPTS {
            match apt.download(&mirror, &names) {
                Ok(packages) => return Ok(packages),
                Err(why) => {
                    announce(format_args!("attempt {attempt} of {ATTEMPTS} failed: {why:#}"));
                    last = Some(why);
                }
            }
        }
    }
    Err(last.unwrap_or_else(|| anyhow::anyhow!("the machine's apt sources name no Debian archive")))
}

/// Unpacks packages below `root`, which is made; no script of theirs is run.
///
/// # Errors
/// `root` cannot be made, or a package cannot be unpacked.
pub fn unpack(packages: &[PathBuf], root: &Path) -> Result<()> {
    fs::create_dir_all(root).with_context(|| format!("Could not create {}", root.display()))?;
    for package in packages {
        process::output(Command::new("dpkg").arg("-x").arg(package).arg(root))?;
    }
    Ok(())
}

/// The machine's own Debian archives, asked of apt itself, which reads every format of source lists.
fn mirrors(suite: &str) -> Result<Vec<String>> {
    let text = process::output(Command::new("apt-get").args([
        "indextargets",
        "--format",
        "$(REPO_URI)|$(RELEASE)|$(COMPONENT)",
        "Created-By: Packages",
    ]))
    .context("Could not list the machine's apt sources")?;
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    Ok(debian_mirrors(&text, &release, suite))
}

fn debian_mirrors(targets: &str, os_release: &str, suite: &str) -> Vec<String> {
    let codename = os_release
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="))
        .map_or("", |name| name.trim_matches('"'));
    // Security updates are in an archive of their own.
    let security = suite.ends_with("-security");
    let own_security = format!("{codename}-security");
    let mut found = Vec::new();
    for line in targets.lines() {
        let fields: Vec<&str> = line.split('|').collect();
        let [uri, release, component] = fields.as_slice() else { continue };
        let suites = [codename, &own_security, suite, "stable", "testing", "unstable", "sid"];
        // Other archives use the same release names; Debian's archives have these paths.
        let archive =
            uri.trim_end_matches('/').ends_with(if security { "/debian-security" } else { "/debian" });
        if *component != "main" || !archive || !suites.contains(release) {
            continue;
        }
        let mirror = (*uri).to_owned();
        if !found.contains(&mirror) {
            found.push(mirror);
        }
    }
    found
}

/// An apt that knows only our directory.
pub struct Apt {
    dir: PathBuf,
    suite: &'static Suite,
}

impl Apt {
    fn prepare(dir: &Path, suite: &'static Suite) -> Result<Self> {
        for below in ["sources", "lists/partial", "cache/archives/partial", "packages"] {
            let path = dir.join(below);
            fs::create_dir_all(&path).with_context(|| format!("Could not create {}", path.display()))?;
        }
        Ok(Self { dir: dir.to_path_buf(), suite })
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let at = |below: &str| self.dir.join(below).display().to_string();
        command.args([
            "-q".to_owned(),
            "-o=Dir::Etc::SourceList=/dev/null".to_owned(),
            format!("-o=Dir::Etc::SourceParts={}", at("sources")),
            format!("-o=Dir::State::Lists={}", at("lists")),
            format!("-o=Dir::Cache={}", at("cache")),
            "-o=Dir::State::status=/dev/null".to_owned(),
            "-o=Acquire::Retries=3".to_owned(),
            "-o=Acquire::http::Timeout=30".to_owned(),
            "-o=Acquire::https::Timeout=30".to_owned(),
            "-o=Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
            "-o=Acquire::IndexTargets::deb::Translations::DefaultEnabled=false".to_owned(),
            // The unprivileged download user cannot write below a home directory.
            "-o=APT::Sandbox::User=root".to_owned(),
        ]);
        if let Some(other) = self.suite.other_architecture {
            command.args(["-o=APT::Architectures::=amd64", &format!("-o=APT::Architectures::={other}")]);
        }
        command.env("LC_ALL", "C");
        command
    }

    /// Fetches the packages (complete files of an earlier attempt are kept) and returns their paths.
    fn download(&self, mirror: &str, names: impl Fn(&Self) -> Result<Vec<String>>) -> Result<Vec<PathBuf>> {
        let suite = self.suite.name;
        let source = self.dir.join("sources/debian.sources");
        let mut text = format!("Types: deb\nURIs: {mirror}\nSuites: {suite}\nComponents: main\n");
        if Path::new(KEYRING).is_file() {
            text += &format!("Signed-By: {KEYRING}\n");
        }
        fs::write(&source, text).with_context(|| format!("Could not write {}", source.display()))?;
        process::output(self.command("apt-get").args(["-o=APT::Update::Error-Mode=any", "update"]))
            .context("Could not read the package list")?;
        let names = names(self)?;
        let packages = self.dir.join("packages");
        process::output(self.command("apt-get").arg("download").args(&names).current_dir(&packages))
            .context("Could not download the packages")?;
        self.newest(&names, &packages)
    }

    /// A package and all that it depends on.
    ///
    /// # Errors
    /// The release has no such package.
    pub fn dependencies(&self, package: &str) -> Result<Vec<String>> {
        let text = process::output(self.command("apt-cache").args([
            "depends",
            "--recurse",
            "--no-recommends",
            "--no-suggests",
            "--no-conflicts",
            "--no-breaks",
            "--no-replaces",
            "--no-enhances",
            package,
        ]))
        .with_context(|| format!("Could not resolve what {package} depends on"))?;
        let names = package_names(&text);
        if names.len() < 2 {
            bail!("Debian {} at the machine's mirror has no package {package}", self.suite.name);
        }
        Ok(names)
    }

    /// One file per package: an interrupted earlier run may have left an older version beside it.
    fn newest(&self, names: &[String], dir: &Path) -> Result<Vec<PathBuf>> {
        let listing = process::output(self.command("apt-get").args(["download", "--print-uris"]).args(names))
            .context("Could not list the package files")?;
        let files = file_names(&listing);
        if files.len() != names.len() {
            bail!("apt names {} files for {} packages", files.len(), names.len());
        }
        files
            .into_iter()
            .map(|file| {
                let path = dir.join(&file);
                if path.is_file() { Ok(path) } else { bail!("apt-get did not fetch {file}") }
            })
            .collect()
    }
}

/// Real packages are at the line's start; virtual ones are in angle brackets, relations are indented.
fn package_names(depends: &str) -> Vec<String> {
    let mut names: Vec<String> = depends
        .lines()
        .filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit()))
        .map(|line| line.trim().to_owned())
        .collect();
    names.sort();
    names.dedup();
    names
}

/// The second word of each `'URI' FILE SIZE HASH` line.
fn file_names(print_uris: &str) -> Vec<String> {
    print_uris
        .lines()
        .filter(|line| line.starts_with('\''))
        .filter_map(|line| line.split_whitespace().nth(1))
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debian_mirrors_takes_the_archive_and_no_other_source() {
        let targets = "http://mirror.test/debian/|bookworm|main\n\
                       http://mirror.test/debian/|bookworm|contrib\n\
                       http://mirror.test/debian/|bookworm-updates|main\n\
                       http://mirror.test/debian-security/|bookworm-security|main\n\
                       http://other.test/apt/|stable|main\n\
                       http://second.test/debian|stable|main\n";
        let found = debian_mirrors(targets, "ID=debian\nVERSION_CODENAME=bookworm\n", "forky");
        assert_eq!(found, ["http://mirror.test/debian/", "http://second.test/debian"]);
    }

    #[test]
    fn debian_mirrors_takes_the_archive_of_security_updates_for_their_suite() {
        let targets = "http://mirror.test/debian/|trixie|main\n\
                       http://mirror.test/debian-security/|trixie-security|main\n";
        let found = debian_mirrors(targets, "VERSION_CODENAME=trixie\n", "bookworm-security");
        assert_eq!(found, ["http://mirror.test/debian-security/"]);
    }

    #[test]
    fn package_names_leaves_virtual_packages_and_relations_out() {
        let text = "criu\n  Depends: libc6\n  Depends: <virtual>\n<virtual>\n    other\nlibc6\ncriu\n";
        assert_eq!(package_names(text), ["criu", "libc6"]);
    }

    #[test]
    fn file_names_reads_the_second_word() {
        let text = "Reading...\n'http://m.test/p/a_1%2b2.deb' a_1+2_amd64.deb 12 SHA256:00\n";
        assert_eq!(file_names(text), ["a_1+2_amd64.deb"]);
    }
}
