// SPDX-License-Identifier: MIT OR Apache-2.0
//! `criu restore` of a tree of a run.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use kfd::transport::control::ControlError;
use kfd::transport::soft::SOFTGPUD_VARIABLE;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use stasis::criu::{ManifestError, OpenDirectory, Trust};
use stasis_criu_foreign::{
    self as foreign, Broker, Description, FILE, ForeignError, Programs, Task, members,
};
use thiserror::Error;

use super::run::{RunError, open};
use crate::host::{Level, log};
use crate::images::{Images, PlaceError};
use crate::network::{NetworkError, within};

/// The environment variable that names `libstasis_kfd.so`, if it is not where it was.
const LIBRARY_VARIABLE: &str = "STASIS_INTERPOSE";

/// Why a tree of a run is not restored.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum RestoreError {
    #[error("The devices of the processes cannot be restored. Nothing was restored")]
    Before(#[source] ForeignError),
    #[error(
        "The devices of the processes cannot be restored; the processes are ended, the images are as they were"
    )]
    Late(#[source] Box<Self>),
    #[error(transparent)]
    Foreign(#[from] ForeignError),
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(transparent)]
    Directory(#[from] ManifestError),
    #[error(transparent)]
    Place(#[from] PlaceError),
    #[error(
        "{FILE} beside the images is one of `stasis checkpoint`: restore its directory by `stasis restore`"
    )]
    OfCommand,
}

/// Whether there is a tree of a run to restore, whose devices are not back yet.
static IS_WANTED: AtomicBool = AtomicBool::new(false);

fn read(images: &Images) -> Result<(OpenDirectory, Description, Programs), RestoreError> {
    // No owner is checked: CRIU itself executes what the images contain.
    let opened = OpenDirectory::open(&images.path, Trust::Anyone)?;
    let description = Description::read(&opened, FILE)?;
    let mut programs = description.programs.clone().ok_or(RestoreError::OfCommand)?;
    let named = |variable| std::env::var_os(variable).filter(|name| !name.is_empty()).map(PathBuf::from);
    if !programs.joined {
        programs.softgpud = named(SOFTGPUD_VARIABLE).unwrap_or(programs.softgpud);
        programs.library = named(LIBRARY_VARIABLE).unwrap_or(programs.library);
    }
    Ok((opened, description, programs))
}

/// Before CRIU has made anything: starts softgpud and makes the run's directory, unless both are in a container that CRIU makes
/// first. softgpud ends with this process, unless the tree is restored.
pub(crate) fn prepare(images: &Images) -> Result<(), RestoreError> {
    let (_, description, programs) = read(images)?;
    if !programs.joined {
        let mut broker = foreign::start(&description.run, &programs).map_err(RestoreError::Before)?;
        broker.stay(std::process::id().cast_signed()).map_err(|error| RestoreError::Before(error.into()))?;
    }
    IS_WANTED.store(true, Ordering::Relaxed);
    Ok(())
}

/// All tasks are made and stopped: gives them their devices back. Does nothing when it is called again.
pub(crate) fn restore(pid: i32) -> Result<(), RestoreError> {
    if !IS_WANTED.swap(false, Ordering::Relaxed) {
        return Ok(());
    }
    let restored = restore_devices(pid);
    restored.map_err(|error| {
        // CRIU ignores what this hook answers; nothing of them runs without its device.
        for pid in members(pid).into_iter().rev() {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        RestoreError::Late(Box::new(error))
    })
}

/// `root` is the first process that CRIU names: the root of the tree.
fn restore_devices(root: i32) -> Result<(), RestoreError> {
    let (opened, description, programs) = read(&Images::open()?)?;
    let tasks = Task::tree(root, programs.joined);
    let (run, user) = (&description.run, programs.owner.0);
    let restored = |broker: &mut Broker| foreign::restore(broker, user, &opened, &tasks, &description);
    match programs.joined {
        false => restored(&mut Broker::connect(&run.socket, user)?)?,
        true => {
            let process = open(root)?;
            let all = || restored(&mut foreign::start_joined(run, &programs, (process.as_fd(), root))?);
            within(root, all)??;
        }
    }
    let waves: u64 = description.clients.iter().map(|client| client.waves).sum();
    let clients = description.clients.len();
    log(Level::Info, &format!("the devices of {clients} processes are restored, {waves} waves in kernels"));
    Ok(())
}
