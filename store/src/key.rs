// SPDX-License-Identifier: MIT OR Apache-2.0
//! The key that objects are sealed with.
//!
//! INVARIANT: a key is not printed, and each use has a key of its own, derived from it.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use nix::fcntl::OFlag;
use nix::unistd::geteuid;

use crate::StoreError;
use crate::error::failed;

/// Bytes of a key.
const KEY_BYTES: usize = 32;
/// Bytes before what is sealed.
pub(crate) const NONCE_BYTES: usize = 24;
/// Bytes behind it.
const TAG_BYTES: usize = 16;
/// Bytes that sealing adds.
pub(crate) const SEAL_BYTES: usize = NONCE_BYTES + TAG_BYTES;

/// A secret of 32 bytes, which whoever writes and whoever reads have in a file.
#[derive(Clone)]
pub struct Key {
    sealing: [u8; 32],
    nonces: [u8; 32],
    names: [u8; 32],
    answers: [u8; 32],
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

impl Key {
    /// The key with these bytes.
    #[must_use]
    pub fn new(secret: &[u8; KEY_BYTES]) -> Self {
        let derived = |usage: &str| blake3::derive_key(&format!("stasis-store 2026-11 {usage}"), secret);
        Self {
            sealing: derived("sealing of objects"),
            nonces: derived("nonces of objects"),
            names: derived("names of objects"),
            answers: derived("answers of receivers"),
        }
    }

    /// Reads a key: 32 bytes, or 64 hexadecimal digits and white space. The file is its owner's alone.
    ///
    /// # Errors
    /// [`StoreError::KeyFile`], [`StoreError::Io`].
    pub fn read(path: &Path) -> Result<Self, StoreError> {
        let bad = |what: String| StoreError::KeyFile { path: path.into(), what };
        // A FIFO would otherwise be waited for.
        let flags = (OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits();
        let file = File::options().read(true).custom_flags(flags).open(path).map_err(failed("open", path))?;
        let status = file.metadata().map_err(failed("stat", path))?;
        if !status.is_file() {
            return Err(bad("it is no file".to_owned()));
        }
        if ![0, geteuid().as_raw()].contains(&status.uid()) {
            return Err(bad(format!("it belongs to user {}", status.uid())));
        }
        if status.mode() & 0o077 != 0 {
            return Err(bad(format!("its permissions are {:04o}", status.mode() & 0o7777)));
        }
        let mut bytes = Vec::new();
        file.take(1024).read_to_end(&mut bytes).map_err(failed("read", path))?;
        if let Ok(secret) = <&[u8; KEY_BYTES]>::try_from(&bytes[..]) {
            return Ok(Self::new(secret));
        }
        let digits = bytes.trim_ascii();
        let hash =
            blake3::Hash::from_hex(digits).map_err(|_| bad(format!("it has {} bytes", bytes.len())))?;
        Ok(Self::new(hash.as_bytes()))
    }

    /// What an object is called, so that its name does not tell the hash of its bytes. Objects of other kinds have other names.
    pub(crate) fn name(&self, kind: u8, hash: &[u8; 32]) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_keyed(&self.names);
        *hasher.update(&[kind]).update(hash).finalize().as_bytes()
    }

    /// What proves that somebody with the key has `said` it.
    pub(crate) fn answer(&self, said: &[u8]) -> [u8; 32] {
        *blake3::keyed_hash(&self.answers, said).as_bytes()
    }

    /// Seals bytes: a nonce, then as many bytes, then a tag, which is of `context`, too.
    ///
    /// The nonce is a keyed hash of all of it: the same bytes are sealed to the same, and no two others share one.
    pub(crate) fn seal(&self, bytes: &[u8], context: &[u8]) -> Vec<u8> {
        let mut hasher = blake3::Hasher::new_keyed(&self.nonces);
        hasher.update(&(context.len() as u64).to_le_bytes()).update(context).update(bytes);
        let mut nonce = [0; NONCE_BYTES];
        hasher.finalize_xof().fill(&mut nonce);
        let cipher = XChaCha20Poly1305::new(&self.sealing.into());
        let payload = Payload { msg: bytes, aad: context };
        let sealed = cipher.encrypt(&XNonce::from(nonce), payload);
        let mut all = nonce.to_vec();
        // PANIC: it fails for more than 256 GiB only.
        all.extend(sealed.expect("INVARIANT: an object has less than 2^32 bytes"));
        all
    }

    /// What was sealed, if it was with this key and this context.
    pub(crate) fn open(&self, sealed: &[u8], context: &[u8]) -> Option<Vec<u8>> {
        let (nonce, rest) = sealed.split_first_chunk::<NONCE_BYTES>()?;
        let cipher = XChaCha20Poly1305::new(&self.sealing.into());
        cipher.decrypt(&XNonce::from(*nonce), Payload { msg: rest, aad: context }).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn sealed_bytes_open_with_the_same_key_and_context_only() {
        let (key, other) = (Key::new(&[7; 32]), Key::new(&[8; 32]));
        let sealed = key.seal(b"what is secret", b"context");
        assert_eq!(sealed.len(), 14 + SEAL_BYTES);
        assert_eq!(key.open(&sealed, b"context").as_deref(), Some(&b"what is secret"[..]));
        assert_eq!(key.seal(b"what is secret", b"context"), sealed);
        assert_ne!(key.seal(b"what is secret", b"contexts")[..24], sealed[..24]);
        assert!(other.open(&sealed, b"context").is_none() && key.open(&sealed, b"other").is_none());
        assert!(key.open(&sealed[..SEAL_BYTES - 1], b"context").is_none());
        for bit in 0..sealed.len() * 8 {
            let mut changed = sealed.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(key.open(&changed, b"context").is_none(), "bit {bit}");
        }
        assert_ne!(key.name(0, &[1; 32]), other.name(0, &[1; 32]));
        assert_ne!(key.name(0, &[1; 32]), key.name(1, &[1; 32]));
    }

    #[test]
    fn key_files_hold_bytes_or_digits_and_are_of_their_owner_alone() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().join("key");
        let write = |bytes: &[u8], mode| {
            fs::write(&path, bytes).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        };
        write(&[0xab; 32], 0o600);
        let key = Key::read(&path).unwrap();
        write(format!("{}\n", "ab".repeat(32)).as_bytes(), 0o400);
        let same = Key::read(&path).unwrap();
        assert_eq!(key.seal(b"x", b""), same.seal(b"x", b""));
        assert_eq!(format!("{key:?}"), "Key");
        for (bytes, mode, reason) in [
            (&[1; 31][..], 0o600, "it has 31 bytes"),
            (&[1; 32], 0o640, "0640"),
            (b"", 0o600, "it has 0 bytes"),
        ] {
            write(bytes, mode);
            let error = Key::read(&path).unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains("0600"), "{error}");
        }
        assert!(Key::read(temporary.path()).unwrap_err().to_string().contains("no file"));
    }
}
