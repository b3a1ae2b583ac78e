// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask isa-coverage`: which rows of the instruction table are implemented and which have a semantic test.
//!
//! INVARIANT: the numbers are those that the tests print after they ran; a row that no test has executed is not
//! counted.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::setup::Installed;
use crate::workspace;

/// The test that runs every check and prints one line per row.
const REPORTER: &str = "semantics::print_coverage";

/// Rows of one format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    implemented: usize,
    tested: usize,
    total: usize,
}

/// The content of the report.
#[derive(Debug, Default, PartialEq, Eq)]
struct Coverage {
    formats: BTreeMap<String, Count>,
    untested: Vec<String>,
    unimplemented: Vec<String>,
}

impl Coverage {
    /// Reads lines `row FORMAT MNEMONIC IMPLEMENTED TESTED`; others are the test runner's.
    fn parse(output: &str) -> Coverage {
        let mut coverage = Coverage::default();
        for line in output.lines() {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            let ["row", format, mnemonic, implemented, tested] = words[..] else { continue };
            let count = coverage.formats.entry(format.to_owned()).or_default();
            count.total += 1;
            if implemented == "true" {
                count.implemented += 1;
            } else {
                coverage.unimplemented.push(mnemonic.to_owned());
            }
            if tested == "true" {
                count.tested += 1;
            } else {
                coverage.untested.push(mnemonic.to_owned());
            }
        }
        coverage
    }

    fn sum(&self) -> Count {
        self.formats.values().fold(Count::default(), |sum, count| Count {
            implemented: sum.implemented + count.implemented,
            tested: sum.tested + count.tested,
            total: sum.total + count.total,
        })
    }
}

/// Runs the checks and prints the table.
///
/// # Errors
/// A check failed, or a row is not implemented or has no semantic test.
pub fn run(installed: &Installed) -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    installed.export(&mut command);
    let output = command
        .args(["test", "--locked", "--quiet", "-p", "stasis-softgpu-waves", "--lib", "--"])
        .args(["--ignored", "--exact", REPORTER, "--nocapture"])
        .current_dir(workspace::root())
        .output()
        .context("Cannot start cargo test")?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success(),
        "The semantic tests failed:\n{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let coverage = Coverage::parse(&text);
    println!("{:10} {:>11} {:>7} {:>6}", "format", "implemented", "tested", "total");
    for (format, count) in &coverage.formats {
        println!("{format:10} {:11} {:7} {:6}", count.implemented, count.tested, count.total);
    }
    let sum = coverage.sum();
    println!("{:10} {:11} {:7} {:6}", "all", sum.implemented, sum.tested, sum.total);
    ensure!(sum.total > 0, "{REPORTER} printed no rows");
    ensure!(coverage.unimplemented.is_empty(), "Not implemented: {}", coverage.unimplemented.join(" "));
    ensure!(coverage.untested.is_empty(), "Without a semantic test: {}", coverage.untested.join(" "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_counts_rows_by_format_and_names_the_untested() {
        let coverage =
            Coverage::parse("running 1 test\nrow Vop1 v_mov_b32 true true\nrow Vop1 v_x false false\n.\n");
        assert_eq!(coverage.formats["Vop1"], Count { implemented: 1, tested: 1, total: 2 });
        assert_eq!(
            (coverage.untested, coverage.unimplemented),
            (vec!["v_x".to_owned()], vec!["v_x".to_owned()])
        );
    }
}
