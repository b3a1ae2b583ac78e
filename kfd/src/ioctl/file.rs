// SPDX-License-Identifier: MIT OR Apache-2.0
//! The open `/dev/kfd`, whose ioctls the neighbouring files wrap.

use std::path::Path;
use std::sync::Arc;

use crate::transport::{File, KFD_PATH, OpenError, Transport};

/// An open `/dev/kfd`.
#[derive(Clone, Debug)]
pub struct Kfd {
    pub(super) file: Arc<dyn File>,
}

impl Kfd {
    /// Wraps an open file, which should be `/dev/kfd`.
    pub fn new(file: Arc<dyn File>) -> Self {
        Self { file }
    }

    /// Opens `/dev/kfd` on `transport`.
    ///
    /// # Errors
    /// As for [`Transport::open`].
    pub fn open(transport: &dyn Transport) -> Result<Self, OpenError> {
        transport.open(Path::new(KFD_PATH)).map(Self::new)
    }

    /// The open file.
    pub fn file(&self) -> &Arc<dyn File> {
        &self.file
    }
}
