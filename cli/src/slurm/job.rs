// SPDX-License-Identifier: MIT OR Apache-2.0
//! What Slurm says of a job, by its environment and by `scontrol`.
//!
//! INVARIANT: no answer of Slurm's is taken for "no": what could not be asked is an error, and the caller decides.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use nix::sys::signal::Signal;

use super::program;

/// TIMEOUT: how long `scontrol` may take, whose own limit is longer than most times of grace.
const PATIENCE: Duration = Duration::from_secs(10);

/// Lists of a node's GPUs that Slurm gives to a job, by index, the first that is set.
const DEVICES: [&str; 3] = ["ROCR_VISIBLE_DEVICES", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS"];

/// The job that this process is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// As `scontrol` takes it: `17`, or `17_3` for a task of an array.
    pub id: String,
    /// The name of its directory.
    pub key: String,
    /// The node it runs on.
    pub node: String,
    /// Whether Slurm has not started it before.
    pub is_first_start: bool,
}

impl Job {
    pub fn of_environment(command: &[OsString]) -> Result<Self> {
        Self::of(|name| std::env::var(name).ok(), command)
    }

    /// One that runs this command: others of the same job have directories of their own.
    fn of(variable: impl Fn(&str) -> Option<String>, command: &[OsString]) -> Result<Self> {
        let number = |name: &str| -> Result<Option<String>> {
            let Some(text) = variable(name) else { return Ok(None) };
            ensure!(
                !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()),
                "{name} is {text:?}, not a number"
            );
            Ok(Some(text))
        };
        let job = number("SLURM_JOB_ID")?.context(
            "SLURM_JOB_ID is not set: this is no job of Slurm; submit it with sbatch, see docs/slurm.md",
        )?;
        let id = match (number("SLURM_ARRAY_JOB_ID")?, number("SLURM_ARRAY_TASK_ID")?) {
            (Some(array), Some(task)) => format!("{array}_{task}"),
            _ => job,
        };
        // It becomes the name of a directory.
        let cluster = variable("SLURM_CLUSTER_NAME").unwrap_or_default();
        let is_plain = |c: &char| c.is_ascii_alphanumeric() || "_-".contains(*c);
        let cluster: String = cluster.chars().filter(is_plain).collect();
        let mut key = if cluster.is_empty() { id.clone() } else { format!("{cluster}-{id}") };
        key.push_str(&format!("-{:08x}", hash(command)));
        // Several processes of one step, by `srun`.
        if let Some(process) = number("SLURM_PROCID")?.filter(|process| process != "0") {
            key.push_str(&format!("-process-{process}"));
        }
        let is_first_start = number("SLURM_RESTART_COUNT")?.is_none_or(|count| count == "0");
        let node = variable("SLURMD_NODENAME").unwrap_or_default();
        Ok(Self { id, key, node, is_first_start })
    }

    /// Indices of the GPUs that it has on its node; `None` if Slurm gave it none in particular.
    pub fn devices(&self) -> Option<Vec<u32>> {
        // Some sites name GPUs by their ids.
        let named = DEVICES.iter().find_map(|name| indices(&std::env::var(name).ok()?));
        match named {
            Some(list) => Some(list),
            // Batch steps of some versions have a number of GPUs only.
            None if std::env::var_os("SLURM_GPUS_ON_NODE").is_some() => {
                gres(&self.describe(&["-d"]).ok()?, &self.node)
            }
            None => None,
        }
    }

    /// Whether somebody has cancelled it, so that it must not start again.
    ///
    /// # Errors
    /// Slurm's controller did not answer.
    pub fn is_cancelled(&self) -> Result<bool> {
        is_cancelled(&self.describe(&[])?)
            .ok_or_else(|| anyhow!("scontrol does not say the state of job {}", self.id))
    }

    /// Has Slurm end it and start it again, on any node.
    ///
    /// # Errors
    /// Slurm's controller did not answer, or refused.
    pub fn requeue(&self) -> Result<()> {
        scontrol(&["requeue", &self.id]).map(drop)
    }

    fn describe(&self, options: &[&str]) -> Result<String> {
        scontrol(&[options, &["-o", "show", "job", &self.id]].concat())
    }
}

/// What `scontrol` answers.
fn scontrol(arguments: &[&str]) -> Result<String> {
    let words = || format!("scontrol {}", arguments.join(" "));
    let mut child = program::shielded("scontrol".as_ref())
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("Cannot start {}", words()))?;
    let deadline = Instant::now() + PATIENCE;
    while child.try_wait().with_context(|| format!("Cannot wait for {}", words()))?.is_none() {
        if Instant::now() >= deadline {
            // It may have ended just now.
            let _ = program::signal(child.id().cast_signed(), Signal::SIGKILL);
            let _ = child.wait();
            bail!("{} did not end within {PATIENCE:?}", words());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let done = child.wait_with_output().with_context(|| format!("Cannot wait for {}", words()))?;
    ensure!(
        done.status.success(),
        "{} failed ({}): {}",
        words(),
        done.status,
        String::from_utf8_lossy(&done.stderr).trim()
    );
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

/// The value of a field of `scontrol`'s.
fn field<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    text.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

/// The same for the same words, in every version of this program (FNV-1a).
fn hash(command: &[OsString]) -> u32 {
    let bytes = command.iter().flat_map(|word| word.as_bytes().iter().copied().chain([0]));
    bytes.fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// Whether a job that is described so does not go on. While its processes end, a cancelled job is COMPLETING, and so is one whose
/// time is over, which says so.
fn is_cancelled(text: &str) -> Option<bool> {
    let state = field(text, "JobState")?;
    let is_late = field(text, "Reason") == Some("TimeLimit");
    Some(state.starts_with("CANCELLED") || state.starts_with("COMPLETING") && !is_late)
}

/// Numbers and ranges of numbers, separated by commas: `0,2-3`.
fn indices(list: &str) -> Option<Vec<u32>> {
    let mut found = Vec::new();
    for part in list.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if last.checked_sub(first)? > 1024 {
            return None;
        }
        // The order is the program's.
        found.extend(first..=last);
    }
    let different: BTreeSet<&u32> = found.iter().collect();
    (!found.is_empty() && different.len() == found.len()).then_some(found)
}

/// The indices in `Nodes=NODE … GRES=gpu:soft:2(IDX:0-1)` of the detailed description of a job, whichever nodes it has.
fn gres(text: &str, node: &str) -> Option<Vec<u32>> {
    let mut is_node = false;
    for word in text.split_whitespace() {
        if let Some(nodes) = word.strip_prefix("Nodes=") {
            is_node = nodes == node || node.is_empty();
        }
        let Some(list) = word.strip_prefix("GRES=").filter(|_| is_node) else { continue };
        let gpus = list.split_inclusive(')').find(|one| one.trim_start_matches(',').starts_with("gpu"))?;
        return indices(gpus.split_once("(IDX:")?.1.strip_suffix(')')?);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(variables: &[(&str, &str)]) -> Result<Job> {
        let find = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        Job::of(find, &["train".into()])
    }

    #[test]
    fn task_of_an_array_has_its_own_id_and_directory() {
        let variables = [("SLURM_JOB_ID", "17"), ("SLURM_CLUSTER_NAME", "../a b"), ("SLURMD_NODENAME", "n1")];
        let plain = job(&variables).unwrap();
        assert_eq!(
            (plain.id.as_str(), plain.key.as_str(), plain.node.as_str()),
            ("17", "ab-17-d779a94b", "n1")
        );
        let task = [("SLURM_JOB_ID", "19"), ("SLURM_ARRAY_JOB_ID", "17"), ("SLURM_ARRAY_TASK_ID", "3")];
        let task = job(&task).unwrap();
        assert_eq!(
            (task.id.as_str(), task.key.as_str(), task.is_first_start),
            ("17_3", "17_3-d779a94b", true)
        );
        let again = [("SLURM_JOB_ID", "19"), ("SLURM_PROCID", "2"), ("SLURM_RESTART_COUNT", "1")];
        let again = job(&again).unwrap();
        assert_eq!((again.key.as_str(), again.is_first_start), ("19-d779a94b-process-2", false));
        assert_ne!(hash(&["a".into(), "b".into()]), hash(&["ab".into()]));
    }

    #[test]
    fn process_without_a_job_is_told_so() {
        assert!(job(&[]).unwrap_err().to_string().contains("sbatch"));
        assert!(job(&[("SLURM_JOB_ID", "../etc")]).is_err());
        assert!(job(&[("SLURM_JOB_ID", "")]).is_err());
    }

    #[test]
    fn gpus_are_those_of_the_node() {
        let text = "JobId=2 JobState=RUNNING JOB_GRES=gpu:soft:3 Nodes=node1 CPU_IDs=1 Mem=0 GRES=gpu:soft:1(IDX:1) \
                    Nodes=node2 CPU_IDs=0-1 Mem=0 GRES=nic:1(IDX:0),gpu:soft:2(IDX:0,3-4) TresPerNode=gres:gpu:1";
        assert_eq!(gres(text, "node1"), Some(vec![1]));
        assert_eq!(gres(text, "node2"), Some(vec![0, 3, 4]));
        assert_eq!(gres(text, "node3"), None);
        assert_eq!(field(text, "JobState"), Some("RUNNING"));
        assert_eq!(field(text, "State"), None);
    }

    #[test]
    fn job_that_ends_is_cancelled_unless_its_time_is_over() {
        let found = |state: &str, reason: &str| {
            is_cancelled(&format!("JobId=1 JobState={state} Reason={reason} x=y"))
        };
        assert_eq!(found("RUNNING", "None"), Some(false));
        assert_eq!(found("CANCELLED", "None"), Some(true));
        assert_eq!(found("COMPLETING", "None"), Some(true));
        assert_eq!(found("COMPLETING", "TimeLimit"), Some(false));
        assert_eq!(found("TIMEOUT", "TimeLimit"), Some(false));
        assert_eq!(is_cancelled("nothing"), None);
    }

    #[test]
    fn lists_that_are_none_name_no_gpu() {
        assert_eq!(indices("2,0-1"), Some(vec![2, 0, 1]));
        for wrong in ["", "GPU-12", "3-1", "0-99999999", "-1", "1,1"] {
            assert_eq!(indices(wrong), None, "{wrong}");
        }
    }
}
