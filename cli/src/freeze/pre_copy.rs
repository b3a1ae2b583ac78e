// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is copied before processes are stopped: images of their contents, which the checkpoint is then made upon.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use stasis::checkpoint::{PreCopyOrder, PreCopyReport};
use stasis::criu::make_private;
use stasis::image::IMAGE_FILE;

use super::orders::{cause, pre_copy_all};
use super::parent::Parents;
use super::party::Party;

/// Where such an image is, in the directory of the process's own. It is gone before CRIU begins.
const BEFORE: &str = "before";
/// How much longer than its deadline an agent may take to answer.
const ANSWER: Duration = Duration::from_secs(10);

/// Images of what processes had; they are removed with this.
#[derive(Debug)]
pub(super) struct PreCopied {
    /// What each process is told to make its checkpoint upon.
    pub parents: Parents,
    pub report: PreCopyReport,
}

impl PreCopied {
    /// The images, each by its path in the checkpoint's directory and by that which its process's own image has there.
    pub fn images(&self, party: &Party) -> Vec<(String, String)> {
        let text = |path: PathBuf| path.to_string_lossy().into_owned();
        let of = |place: &Path| (text(place.join(BEFORE).join(IMAGE_FILE)), text(place.join(IMAGE_FILE)));
        party.members().map(|member| of(&member.place)).collect()
    }
}

impl Drop for PreCopied {
    fn drop(&mut self) {
        for directory in self.parents.values() {
            if let Err(error) = fs::remove_dir_all(directory) {
                tracing::warn!(target: "checkpoint", path = %directory.display(), %error, "an image of before stays");
            }
        }
    }
}

/// Copies the contents of a party's processes into `directory` while they run, upon the parents that they have.
pub(super) fn run(
    party: &Party,
    parents: &Parents,
    directory: &Path,
    rounds: u32,
    deadline: Duration,
) -> Result<PreCopied> {
    let mut copied = PreCopied { parents: Parents::new(), report: PreCopyReport::default() };
    for member in party.members() {
        let place: PathBuf = directory.join(&member.place).join(BEFORE);
        make_private(&place)?;
        copied.parents.insert(member.pid, place);
    }
    let order = |(pid, place): (&i32, &PathBuf)| PreCopyOrder {
        directory: place.clone(),
        deadline_ms: u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX),
        rounds,
        parent: parents.get(pid).cloned(),
    };
    let orders: Vec<_> = copied.parents.iter().map(|entry| (*entry.0, order(entry))).collect();
    let (mut reports, mut failures) = (Vec::new(), Vec::new());
    for answer in pre_copy_all(&orders, deadline + ANSWER) {
        match answer {
            Ok(report) => reports.push(report),
            Err(error) => failures.push(error),
        }
    }
    if let Some(error) = cause(failures) {
        return Err(error)
            .context("The buffers were not copied beside the running process, which was not stopped");
    }
    copied.report = sum(&reports);
    Ok(copied)
}

/// Bytes are added; the processes copied at the same time, so the longest counts.
fn sum(reports: &[PreCopyReport]) -> PreCopyReport {
    let mut all = PreCopyReport::default();
    for report in reports {
        all.pre_copy_ms = all.pre_copy_ms.max(report.pre_copy_ms);
        all.rounds.resize(all.rounds.len().max(report.rounds.len()), 0);
        for (sum, bytes) in all.rounds.iter_mut().zip(&report.rounds) {
            *sum += bytes;
        }
        all.content_bytes += report.content_bytes;
        all.left_bytes += report.left_bytes;
        all.outpaced |= report.outpaced;
        all.ended = all.ended.or_else(|| report.ended.clone());
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_of_several_processes_are_added() {
        let report = |rounds: &[u64], outpaced| PreCopyReport {
            pre_copy_ms: rounds.len() as f64,
            rounds: rounds.to_vec(),
            content_bytes: 10,
            left_bytes: 1,
            outpaced,
            ended: outpaced.then(|| "a reason".to_owned()),
        };
        let all = sum(&[report(&[5, 2], false), report(&[7, 3, 1], true)]);
        assert_eq!((all.pre_copy_ms, &all.rounds[..]), (3.0, &[12, 5, 1][..]));
        assert_eq!((all.content_bytes, all.left_bytes, all.outpaced), (20, 2, true));
        assert_eq!(all.ended.as_deref(), Some("a reason"));
    }

    #[test]
    fn images_of_before_are_removed_whatever_happens() {
        let temporary = tempfile::tempdir().unwrap();
        let place = temporary.path().join(BEFORE);
        make_private(&place).unwrap();
        fs::write(place.join("runtime-0.img"), "").unwrap();
        drop(PreCopied { parents: Parents::from([(7, place.clone())]), report: PreCopyReport::default() });
        assert!(!place.exists());
    }
}
