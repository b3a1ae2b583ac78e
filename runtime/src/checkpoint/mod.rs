// SPDX-License-Identifier: MIT OR Apache-2.0
//! Freeze and thaw: `RUNNING → lock → LOCKED → checkpoint → CHECKPOINTED → restore → LOCKED → unlock → RUNNING`.
//!
//! INVARIANT: a verb that fails leaves the state it found, and everything the state promises. While CHECKPOINTED the
//! process holds no descriptor, mapping or socket of the device; its registry says how to make everything again, and
//! the image has the bytes.
//!
//! The state machine lives in the process. It is driven through [`crate::Runtime`], or by the agent thread on behalf of
//! a controller outside ([`protocol`]).

mod admit;
pub(crate) mod agent_thread;
mod audit;
mod call;
mod calls;
pub mod contact;
mod contents;
mod drain;
mod driver_objects;
mod error;
#[cfg(test)]
mod faults;
#[cfg(test)]
pub(crate) mod in_place;
mod inbox;
mod info;
mod keeper;
mod known;
mod last_line;
mod lazy;
mod machine;
mod message;
mod options;
mod pre_copy;
mod preempt;
pub mod protocol;
mod rebuild;
mod report;
mod rescue;
mod restore;
mod secret;
mod self_checkpoint;
mod snapshot;
mod steps;
mod tear_down;
mod text;
mod verbs;
mod waiting;
mod writing;

pub use stasis_protocol::lease::OnStranded;
pub use stasis_protocol::{Activity, Mode, State};

pub use self::admit::{
    Admission, AgentIdentity, Checks, CpuLink, Difference, ElsewhereError, Lazy, LinkKind, Links, OfferError,
    PeerBuffers, Place, PlaceError, Relation, Rule, Subject, Switch, SwitchError, TermsOffer, Value, rules,
};
pub use self::audit::{Culprit, audit_process, is_of_device};
pub use self::call::{call, call_with};
pub use self::error::CheckpointError;
pub use self::inbox::{INVITATION, Inbox, NOTICE_LINK};
pub use self::info::{AgentInfo, Amount, Objects, Preempt, ProcessInfo, QueueInfo};
pub use self::keeper::{KEEPER_NAME, KeeperError, succeed_keeper};
pub use self::options::{CheckpointOptions, DEFAULT_DEADLINE, RestoreOptions, SaveOptions};
pub use self::pre_copy::{PreCopyOptions, PreCopyReport};
pub use self::preempt::{
    CaptureError, ForkError, LAST_KFD_MINOR_WITHOUT_MES, Step as ProbeStep, Unavailable,
};
pub use self::protocol::{CallError, CheckpointOrder, Done, PreCopyOrder, Reply, Request};
pub use self::report::{CheckpointReport, RestoreReport};
pub use self::rescue::{Rescue, Stranded};
pub use self::secret::TermsSecret;
pub use self::self_checkpoint::{Life, SelfCheckpoint, SelfCheckpointError};
pub use self::snapshot::Metadata;
pub(crate) use self::steps::save;
pub use crate::image::IMAGE_FILE;
pub use crate::linux::credentials::Peer;
pub use crate::linux::incarnation::Incarnation;
pub use crate::linux::process::{Ended, Process};
