// SPDX-License-Identifier: MIT OR Apache-2.0
//! What ioctls do with lent pages: before they are sent, and after the device has answered.

use super::{Lent, Pages, Purpose, User, page_range};
use crate::transport::soft::marshal::{self, Memory};
use crate::transport::wire::PageRun;
use crate::{maps, sys};

impl Lent {
    /// Lends what an ioctl needs; [`Lent::settle`] or [`Lent::cancel`] comes after it. `None` if the ioctl has nothing to do
    /// with lent pages.
    pub fn prepare(&mut self, memory: &Memory) -> Option<Pages> {
        let pages = match *memory {
            Memory::Buffer => return None,
            Memory::Freed { handle } => return self.objects.contains_key(&handle).then(Pages::default),
            Memory::Object { address, bytes, writable } => {
                self.lend(address, bytes, Purpose::Object { writable })
            }
            Memory::Range { address, bytes, ref access } => {
                let gains = access.iter().any(|(_, has)| *has);
                if gains { self.lend(address, bytes, Purpose::Range) } else { mapped(address, bytes) }
            }
        };
        Some(pages.unwrap_or_default())
    }

    /// The device has done what the ioctl asked for; `answer` is the argument if it was copied back.
    pub fn settle(&mut self, memory: &Memory, pages: &Pages, answer: Option<&[u8]>) {
        match memory {
            Memory::Buffer => {}
            Memory::Freed { handle } => self.release(*handle),
            Memory::Object { .. } => match answer {
                Some(answer) if !pages.runs.is_empty() => {
                    let args: sys::kfd_ioctl_alloc_memory_of_gpu_args = marshal::from_prefix(answer);
                    self.keep(pages, args.handle);
                }
                _ => self.cancel(pages),
            },
            Memory::Range { access, .. } => self.set_access(pages, access),
        }
    }

    /// Notes which GPUs may access the pages as shared virtual memory, and takes those back that nobody uses any more.
    fn set_access(&mut self, pages: &Pages, access: &[(u32, bool)]) {
        if access.is_empty() {
            return;
        }
        let whole = self.cut_out(&pages.range);
        for start in self.starts(&pages.range) {
            let Some(loan) = self.loans.get_mut(&start) else { continue };
            for (gpu, has) in access {
                loan.users.retain(|user| *user != User::Gpu(*gpu));
                if *has {
                    loan.users.push(User::Gpu(*gpu));
                }
            }
        }
        self.take_back_unused(&whole);
    }
}

/// Pages that are mapped, whatever they are.
fn mapped(address: u64, bytes: u64) -> Option<Pages> {
    let range = page_range(address, bytes)?;
    let vmas = maps::in_range(&range).ok()?;
    let end = vmas.iter().try_fold(range.start, |at, vma| (vma.range.start == at).then_some(vma.range.end));
    let runs = vec![PageRun::Unchanged { bytes: range.len() as u64 }];
    (end == Some(range.end)).then(|| Pages { range, runs, ..Pages::default() })
}
