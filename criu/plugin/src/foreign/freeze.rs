// SPDX-License-Identifier: MIT OR Apache-2.0
//! `criu dump` of a tree of a run.

use std::fs;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use stasis_criu_foreign::{Executor, ForeignError, Paused, Saving, is_saved_file};
use thiserror::Error;

use super::run::{RunError, Tree};
use crate::host::{self, Level, log};
use crate::images::{Images, PlaceError};
use crate::inside::{self, InsideError};
use crate::marker::{File, MarkerError};
use crate::settings::{Settings, SettingsError};
use crate::sys::AlarmStopped;
use crate::tree;

/// The lease of a pause: as long as it can be. CRIU takes as long as it takes; if it is killed, the connections end.
const LEASE: Duration = Duration::from_secs(24 * 60 * 60);

/// Why a tree of a run is not dumped.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum FreezeError {
    #[error("The tree is not dumped")]
    Run(#[from] RunError),
    #[error("The tree is not dumped")]
    Foreign(#[from] ForeignError),
    #[error(transparent)]
    Inside(#[from] InsideError),
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error(transparent)]
    Place(#[from] PlaceError),
    #[error(transparent)]
    Marker(#[from] MarkerError),
    #[error(
        "The softgpud of the tree (process {softgpud}) is in the control group that this criu freezes, and cannot answer: start \
         `stasis run` in another one, or leave --freeze-cgroup out"
    )]
    Seized { softgpud: i32 },
    #[error("Cannot remove {name} of an earlier dump")]
    Stale {
        name: String,
        #[source]
        source: io::Error,
    },
}

/// A tree whose devices are paused.
#[derive(Debug)]
struct Held {
    tree: Tree,
    executors: Vec<Executor>,
    paused: Vec<Paused>,
}

static HELD: Mutex<Option<Held>> = Mutex::new(None);

fn held() -> MutexGuard<'static, Option<Held>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Forgets an earlier dump of this process; its devices resume.
pub(crate) fn forget() {
    *held() = None;
}

/// Whether devices are paused.
pub(crate) fn is_holding() -> bool {
    held().is_some()
}

/// Whether the device of a process is paused.
pub(crate) fn has_client(pid: i32) -> bool {
    held().as_ref().is_some_and(|held| held.tree.clients.iter().any(|task| task.pid == pid))
}

/// Pauses the devices of the tree below `root`, whose processes run still.
pub(crate) fn pause(root: i32) -> Result<(), FreezeError> {
    let _stopped = AlarmStopped::now();
    let Some(mut tree) = Tree::find(root)? else { return Ok(()) };
    let deadline = Duration::from_millis(Settings::from_env()?.deadline_ms);
    tree.hold()?;
    let mut executors = tree.connect()?;
    let mut paused = Vec::new();
    for (executor, task) in executors.iter_mut().zip(&tree.clients) {
        let report = executor.pause(deadline, LEASE);
        // Those that are paused resume by the end of their connections.
        paused.push(report.map_err(ForeignError::of(task.pid, "cannot be paused"))?);
    }
    for ended in tree.move_out(&mut executors)? {
        inside::wait_for_the_end_of(ended)?;
    }
    let waves: u64 = paused.iter().map(|paused| paused.waves).sum();
    let clients = tree.clients.len();
    log(Level::Info, &format!("the devices of {clients} processes are paused, {waves} waves in kernels"));
    *held() = Some(Held { tree, executors, paused });
    Ok(())
}

/// Removes the files of an earlier dump.
fn clear(images: &Images) -> Result<(), FreezeError> {
    let entries = fs::read_dir(&images.path).into_iter().flatten().flatten();
    for name in entries.filter_map(|entry| entry.file_name().into_string().ok()).filter(|n| is_saved_file(n))
    {
        match fs::remove_file(images.path.join(&name)) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(FreezeError::Stale { name, source });
            }
            _ => {}
        }
    }
    Ok(())
}

/// Saves the devices of a paused tree: all its tasks are frozen. Answers the files, if it has devices. Those of an earlier dump are
/// removed.
pub(crate) fn save() -> Result<Option<Vec<File>>, FreezeError> {
    let mut held = held();
    let Ok(images) = Images::open() else { return Ok(None) };
    clear(&images)?;
    let Some(held) = held.as_mut() else { return Ok(None) };
    let _stopped = AlarmStopped::now();
    let tree = &held.tree;
    let seized = held.executors.iter().filter_map(Executor::pid).find(|pid| tree::is_traced(*pid));
    if let Some(softgpud) = seized {
        return Err(FreezeError::Seized { softgpud });
    }
    let saving = Saving {
        run: &tree.run,
        tasks: &tree.tasks(),
        others: &tree.others,
        directory: &images.path,
        left_out: Default::default(),
        programs: Some(tree.programs.clone()),
    };
    let saved = saving.save(&mut held.executors, &held.paused)?;
    if !host::require_plugin() {
        log(Level::Warning, "this criu cannot note that its images need this plugin: restore them with it");
    }
    let files = saved.files.into_iter().map(|name| File::of(images.fd, &images.path, name));
    Ok(Some(files.collect::<Result<_, _>>()?))
}
