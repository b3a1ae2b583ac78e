// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random bytes of the system.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::error::{StoreError, failed};

/// So many random bytes.
///
/// # Errors
/// [`StoreError::Io`].
pub(crate) fn random<const BYTES: usize>() -> Result<[u8; BYTES], StoreError> {
    let source = Path::new("/dev/urandom");
    let mut bytes = [0; BYTES];
    File::open(source).and_then(|mut file| file.read_exact(&mut bytes)).map_err(failed("read", source))?;
    Ok(bytes)
}
