// SPDX-License-Identifier: MIT OR Apache-2.0
//! `libhsa-runtime64.so.1`: linked from the crate's archive, since its symbols have the version that AMD's have; and which functions of
//! AMD's runtime it has.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::setup::Installed;
use crate::workspace::{cargo, root, target};

/// The name under which programs load it.
const NAME: &str = "libhsa-runtime64.so.1";
/// What Rust's standard library is linked with.
const LIBRARIES: [&str; 4] = ["-lgcc_s", "-lpthread", "-lm", "-ldl"];

/// Links the library from the archive that was built with a profile, into a directory of its own; its path.
pub fn link(profile: &str) -> Result<PathBuf> {
    let built = target().join(profile);
    let (archive, directory) = (built.join("libstasis_hsa.a"), built.join("hsa"));
    ensure!(archive.exists(), "{} was not built", archive.display());
    std::fs::create_dir_all(&directory).with_context(|| format!("Cannot make {}", directory.display()))?;
    // It is replaced by a rename: a program that has the old one mapped keeps it.
    let (new, path) = (directory.join(format!("{NAME}.new")), directory.join(NAME));
    let mut linker = Command::new("cc");
    linker.args(["-shared", "-o"]).arg(&new).arg(format!("-Wl,-soname,{NAME}"));
    linker.arg(format!("-Wl,--version-script={}", root().join("hsa/versions.map").display()));
    linker.arg("-Wl,--whole-archive").arg(&archive).arg("-Wl,--no-whole-archive");
    // The lines of code that debuggers show stay in the archive.
    linker.args(["-Wl,--gc-sections", "-Wl,--strip-debug", "-Wl,-z,relro,-z,now"]).args(LIBRARIES);
    let status = linker.status().context("Cannot start cc")?;
    ensure!(status.success(), "cc did not link {NAME} ({status})");
    std::fs::rename(&new, &path).with_context(|| format!("Cannot write {}", path.display()))?;
    path.canonicalize().with_context(|| format!("Cannot resolve {}", path.display()))
}

/// Builds the library with optimisation, and says how to use it.
pub fn install(installed: &Installed) -> Result<()> {
    let packages = ["-p", "stasis-hsa", "-p", "stasis-softgpu", "-p", "stasis-cli"];
    cargo(&[&["build", "--release", "--locked"][..], &packages].concat(), installed)?;
    let path = link("release")?;
    let (directory, release) = (path.parent().unwrap_or(&path), target().join("release"));
    println!("{} is ready. A program for AMD's HSA runtime runs on it:", path.display());
    println!("  LD_LIBRARY_PATH={} ./program", directory.display());
    println!("On the software device, where there is no GPU (or STASIS_DEVICE=soft:gfx1100 to have it so):");
    println!(
        "  STASIS_SOFTGPUD={}/softgpud LD_LIBRARY_PATH={} ./program",
        release.display(),
        directory.display()
    );
    println!(
        "It is checkpointed as every program of the runtime is: {}/stasis checkpoint PID DIR",
        release.display()
    );
    Ok(())
}

/// A function of the table.
#[derive(Debug, PartialEq, Eq)]
struct Function<'a> {
    name: &'a str,
    state: &'a str,
    clients: Vec<&'a str>,
}

/// Reads the table: a name, a state and clients a line.
fn functions(table: &str) -> Vec<Function<'_>> {
    let lines = table.lines().filter(|line| !line.starts_with('#'));
    let function = |line: &'_ str| -> Option<(usize, usize)> {
        let (name, rest) = line.split_once(' ')?;
        let (state, _) = rest.split_once(' ')?;
        Some((name.len(), name.len() + 1 + state.len()))
    };
    lines
        .filter_map(|line| {
            let (name, state) = function(line)?;
            let clients = line[state + 1..].split(',').filter(|client| *client != "-").collect();
            Some(Function { name: &line[..name], state: &line[name + 1..state], clients })
        })
        .collect()
}

/// Prints the table and what it comes to.
pub fn coverage() -> Result<()> {
    let path = root().join("hsa/functions.txt");
    let table = std::fs::read_to_string(&path).with_context(|| format!("Cannot read {}", path.display()))?;
    let all = functions(&table);
    for Function { name, state, clients } in &all {
        println!("{name:62} {state:52} {}", clients.join(" "));
    }
    let mut counts: BTreeMap<&str, [usize; 3]> = BTreeMap::new();
    for Function { state, clients, .. } in &all {
        let at = match *state {
            "done" => 0,
            "missing" => 2,
            _ => 1,
        };
        for client in clients.iter().copied().chain(["all"]) {
            counts.entry(client).or_default()[at] += 1;
        }
    }
    println!("\n{:14} {:>6} {:>8} {:>8}", "wanted by", "done", "refused", "missing");
    for (client, [done, refused, missing]) in counts {
        println!("{client:14} {done:>6} {refused:>8} {missing:>8}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_read_line_by_line() {
        let all = functions("# a comment\nhsa_init done hip7,iree\nhsa_x STATUS -\n");
        assert_eq!(all[0], Function { name: "hsa_init", state: "done", clients: vec!["hip7", "iree"] });
        assert_eq!(all[1], Function { name: "hsa_x", state: "STATUS", clients: vec![] });
        assert_eq!(all.len(), 2);
    }

    #[test]
    fn table_has_what_is_exported_and_says_what_is_missing() {
        let table = std::fs::read_to_string(root().join("hsa/functions.txt")).unwrap();
        let mut sources = vec![root().join("hsa/src")];
        let mut exported = Vec::new();
        while let Some(path) = sources.pop() {
            if path.is_dir() {
                sources.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let names = text.lines().filter_map(|line| line.strip_prefix("    fn hsa_")?.split_once('('));
            exported.extend(names.map(|(name, _)| format!("hsa_{name}")));
        }
        exported.sort();
        let has = |function: &&Function<'_>| function.state != "missing";
        let all = functions(&table);
        let listed: Vec<&str> = all.iter().filter(has).map(|function| function.name).collect();
        assert_eq!(listed, exported);
    }
}
