// SPDX-License-Identifier: MIT OR Apache-2.0
//! A private prefix with Slurm as Debian packages it, for tests and the demo: no service is started, no user made.

use super::apt;
use super::private;
use anyhow::Context;
use anyhow::Result;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::path::PathBuf;

/// Slurm 22.05.
const SUITE: apt::Suite = apt::Suite::named("bookworm");
/// Slurm's, and the libraries that few machines have. What else they need is on every machine with a compiler.
const PACKAGES: [&str; 10] = [
    "slurmctld",
    "slurmd",
    "slurm-client",
    "slurm-wlm-basic-plugins",
    "libhwloc15",
    "liblua5.1-0",
    "munge",
    "libmunge2",
    "libjson-c5",
    "libyaml-0-2",
];
/// The daemons, which Debian installs under other names; one that is not called by its own does not know that it is one, and
/// has no GPUs.
const DAEMONS: [&str; 3] = ["slurmctld", "slurmd", "slurmstepd"];
const CLIENTS: [&str; 6] = ["sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun"];
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// The prefix, made at `private`/slurm if it is not there.
///
/// # Errors
/// The packages could not be downloaded or unpacked.
pub fn find_or_install(private: &Path) -> Result<PathBuf> {
    let what = "Slurm (4 MB, 15 MB unpacked)";
    private::unpacked(private, "slurm", &SUITE, &PACKAGES, what, |prefix| {
        let plugins = prefix.join("plugins");
        if !plugins.exists() {
            symlink(Path::new("root").join(LIBRARIES).join("slurm-wlm"), plugins)
                .context("Could not make the link to Slurm's plugins")?;
        }
        write_programs(prefix)
    })
}

/// Writes the programs that start Slurm's with the prefix's libraries. A variable of the environment would reach the jobs.
fn write_programs(prefix: &Path) -> Result<()> {
    let daemons = DAEMONS.map(|name| (format!("sbin/{name}"), format!("usr/sbin/{name}-wlm"), name));
    let clients = CLIENTS.map(|name| (format!("bin/{name}"), format!("usr/bin/{name}"), name));
    let munged = [("sbin/munged".to_owned(), "usr/sbin/munged".to_owned(), "munged")];
    for (place, program, name) in daemons.into_iter().chain(clients).chain(munged) {
        let text = format!(
            "#!/bin/sh\nroot=$(cd \"${{0%/*}}/../root\" && pwd -P) || exit\nlib=\"$root/{LIBRARIES}\"\n\
             exec /lib64/ld-linux-x86-64.so.2 --library-path \"$lib/slurm-wlm:$lib\" --argv0 {name} \"$root/{program}\" \"$@\"\n"
        );
        private::write_program(&prefix.join(place), &text)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::process;
    use super::*;
    use std::fs;

    #[test]
    fn daemons_are_called_by_their_names() {
        let prefix = std::env::temp_dir().join(format!("stasis-slurm-{}", std::process::id()));
        write_programs(&prefix).unwrap();
        let text = fs::read_to_string(prefix.join("sbin/slurmd")).unwrap();
        assert!(text.contains("--argv0 slurmd \"$root/usr/sbin/slurmd-wlm\""), "{text}");
        assert!(fs::read_to_string(prefix.join("bin/sbatch")).unwrap().contains("--argv0 sbatch"));
        process::remove(&prefix).unwrap();
    }
}
