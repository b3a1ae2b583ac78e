// SPDX-License-Identifier: MIT OR Apache-2.0
//! Contexts of the render nodes (`amdgpu_ctx.c`): what a client needs to submit work, and to learn of resets. Work is not
//! submitted here, but libdrm's users make contexts for the latter, too.
//!
//! INVARIANT: a context belongs to one open file, and its number is the lowest free one from 1.

use std::collections::BTreeMap;

use kfd::sys::*;
use nix::errno::Errno;

use super::super::Call;
use super::super::bo::Slots;
use super::super::files::{Node, OpenFile};
use super::super::process::KfdProcess;

/// Contexts of a file, and one (`AMDGPU_VM_MAX_NUM_CTX`).
const END: usize = 4096;

/// How often the GPU had been reset when the context was made, and when its state was asked for.
#[derive(Debug)]
pub(in super::super) struct Context {
    pub(in super::super) made: u32,
    pub(in super::super) asked: u32,
}

/// The contexts of each open file, by the file's number.
#[derive(Debug, Default)]
pub(in super::super) struct Contexts(BTreeMap<u64, Slots<Context>>);

impl Contexts {
    /// All of them: the file's number, the slot, the context.
    pub(in super::super) fn iter(&self) -> impl Iterator<Item = (u64, u32, &Context)> {
        self.0.iter().flat_map(|(file, slots)| slots.iter().map(|(slot, context)| (*file, slot, context)))
    }

    /// Forgets those of a file that is closed (`amdgpu_driver_postclose_kms`).
    pub(in super::super) fn forget(&mut self, file: u64) {
        self.0.remove(&file);
    }

    /// Adds a context under its old number; fails if the number is taken, or no file gives it.
    #[must_use]
    pub(in super::super) fn insert_at(&mut self, file: u64, slot: u32, context: Context) -> bool {
        (slot as usize) + 1 < END && self.0.entry(file).or_default().insert_at(slot, context)
    }
}

impl KfdProcess {
    /// AMDGPU_CTX.
    pub(super) fn amdgpu_ctx(
        &self,
        file: &OpenFile,
        args: &mut drm_amdgpu_ctx,
        _call: &Call<'_>,
    ) -> Result<(), Errno> {
        let Node::Render { gpu } = file.node() else { return Err(Errno::EINVAL) };
        if args.flags != 0 {
            return Err(Errno::EINVAL);
        }
        let mut state = self.state.lock();
        let resets = state.pdds.get(gpu).map_or(0, |pdd| pdd.resets);
        let contexts = state.contexts.0.entry(file.id()).or_default();
        // A number from 0, as the table has it; the clients' are one higher.
        let slot = args.ctx_id.wrapping_sub(1);
        match args.op {
            AMDGPU_CTX_OP_ALLOC_CTX => {
                // Who may have more than the others has CAP_SYS_NICE, or is the display server. A priority that is not
                // known counts as the normal one.
                if matches!(args.priority, AMDGPU_CTX_PRIORITY_HIGH | AMDGPU_CTX_PRIORITY_VERY_HIGH) {
                    return Err(Errno::EACCES);
                }
                if contexts.len() + 1 >= END {
                    return Err(Errno::ENOSPC);
                }
                let slot = contexts.insert(Context { made: resets, asked: resets });
                args.op = slot + 1;
                Ok(())
            }
            AMDGPU_CTX_OP_FREE_CTX => contexts.remove(slot).map(drop).ok_or(Errno::EINVAL),
            AMDGPU_CTX_OP_QUERY_STATE => {
                let context = contexts.get_mut(slot).ok_or(Errno::EINVAL)?;
                let same = std::mem::replace(&mut context.asked, resets) == resets;
                let priority = if same { AMDGPU_CTX_NO_RESET } else { AMDGPU_CTX_UNKNOWN_RESET };
                *args = drm_amdgpu_ctx { priority, ..Default::default() };
                Ok(())
            }
            AMDGPU_CTX_OP_QUERY_STATE2 => {
                let context = contexts.get(slot).ok_or(Errno::EINVAL)?;
                let flags = if context.made == resets { 0 } else { AMDGPU_CTX_QUERY2_FLAGS_RESET };
                (args.op, args.flags) = (flags, 0);
                Ok(())
            }
            // A stable clock is a matter of power management, which is not modelled.
            _ => Err(Errno::EINVAL),
        }
    }
}
