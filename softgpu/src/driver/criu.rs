// SPDX-License-Identifier: MIT OR Apache-2.0
//! CRIU_OP. Only the checks that come before the work: a later change implements the operations.
//!
//! INVARIANT: nothing is paused or changed; a caller learns that before it relies on anything.

use kfd::sys::*;
use rustix::io::Errno;

use super::Call;
use super::process::KfdProcess;

impl KfdProcess {
    pub(super) fn criu_op(&self, args: &mut kfd_ioctl_criu_args, _call: &Call<'_>) -> Result<(), Errno> {
        match args.op {
            KFD_CRIU_OP_PROCESS_INFO if self.gpus.is_empty() => Err(Errno::NODEV),
            KFD_CRIU_OP_CHECKPOINT if args.devices == 0 || args.bos == 0 || args.priv_data == 0 => {
                Err(Errno::INVAL)
            }
            // Never paused, since PROCESS_INFO never succeeds.
            KFD_CRIU_OP_CHECKPOINT | KFD_CRIU_OP_UNPAUSE => Err(Errno::INVAL),
            // What the kernel says of a queue whose state it cannot take (gfx12 has no checkpoint_mqd).
            KFD_CRIU_OP_PROCESS_INFO | KFD_CRIU_OP_RESTORE | KFD_CRIU_OP_RESUME => Err(Errno::OPNOTSUPP),
            _ => Err(Errno::INVAL),
        }
    }
}
