// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is saved of a tree while its tasks are frozen and CRIU's images complete.

use std::cell::RefCell;
use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use stasis::criu::seal;
use stasis_criu::BeforeCommit;
use stasis_criu_foreign::{
    self as foreign, CHECKPOINTED_FILE, Executor, OpenRunDirectory, Paused, Task, members,
};

use super::clients::Tree;
use super::left_out::Report;
use crate::progress::milliseconds;

/// What was saved while the tasks were frozen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Saved {
    pub milliseconds: f64,
    pub stored_bytes: u64,
}

/// What is done while the tasks are frozen.
#[derive(Debug)]
pub(super) struct Saving<'a> {
    pub tree: &'a Tree,
    pub directory: &'a Path,
    pub left_out: &'a Report,
    /// Where a file tells `stasis run` why its program ends.
    pub mark: Option<OpenRunDirectory>,
    pub paused: &'a [Paused],
    /// Whether the files are listed here, and not by the script of the commit.
    pub seals: bool,
    pub executors: RefCell<Vec<Executor>>,
    pub outcome: RefCell<Option<Result<Saved>>>,
}

impl BeforeCommit for Saving<'_> {
    fn prepare(&self) -> bool {
        let saved = self.save();
        let may_commit = saved.is_ok();
        *self.outcome.borrow_mut() = Some(saved);
        may_commit
    }
}

impl Saving<'_> {
    fn save(&self) -> Result<Saved> {
        let began = Instant::now();
        let tasks: Vec<Task> = members(self.tree.pid).into_iter().map(Task::here).collect();
        let saving = foreign::Saving {
            run: &self.tree.run,
            tasks: &tasks,
            others: &self.tree.others,
            directory: self.directory,
            left_out: self.left_out.take()?,
            programs: None,
        };
        let saved = saving.save(&mut self.executors.borrow_mut(), self.paused)?;
        if self.seals {
            seal(self.directory)?;
        }
        if let Some(mark) = &self.mark {
            let said = self.directory.as_os_str().as_encoded_bytes();
            mark.write_new(CHECKPOINTED_FILE, said)?;
        }
        Ok(Saved { milliseconds: milliseconds(began), stored_bytes: saved.stored_bytes })
    }
}
