// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes an image: chunks in parallel, then the tables, then the name. On a disk chunks go past the page cache; into the
//! memory of an earlier image they are copied through a mapping.
//!
//! INVARIANT: until `finish` has synced everything the file has no name but a temporary one of this process.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use nix::sys::memfd::{MFdFlags, memfd_create};
use queues::words::size;
use serde::Serialize;
use stasis_protocol::Limit;

use super::format::{
    CHUNK_ENTRY_BYTES, CONTENTS_OFFSET, Chunk, EarlierFile, ImageError, Section, SectionKind, encode_front,
};
use super::host::Mapping;
use super::known::{KnownChunk, known_chunks};
use super::parent::{Linked, Parent};
use super::sink::{Failure, Part, Sink, runs};
use super::worker::{Bulk, TRANSFER_THREADS, for_each};
use super::{Extent, Image};

/// Name of an image in memory, as /proc shows it.
const IN_MEMORY: &str = "stasis-image";
/// What writing an image moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WriteStats {
    /// Bytes of all extents.
    pub content_bytes: u64,
    /// Bytes of them that were not zero and are in the file.
    pub stored_bytes: u64,
    /// Bytes of them that are in files of the parent, which has the same.
    pub unchanged_bytes: u64,
    /// Bytes of all extents that were not read, since they were known ([`ImageWriter::knowing`]).
    pub unread_bytes: u64,
    /// Length of the file.
    pub file_bytes: u64,
}

/// A finished image.
#[derive(Debug)]
pub struct Finished {
    /// What it took.
    pub stats: WriteStats,
    /// The image itself, for [`super::Image::of_file`]; all there is of one that has no name ([`ImageWriter::in_memory`]).
    pub file: File,
    /// The files of earlier images that it has contents in, in their order.
    pub earlier: Vec<File>,
}

/// Where an image will be found.
#[derive(Debug)]
enum Place {
    Named { temporary: PathBuf, path: PathBuf, finished: bool },
    Memory,
}

impl Place {
    fn label(&self) -> &Path {
        match self {
            Self::Named { temporary, .. } => temporary,
            Self::Memory => Path::new(IN_MEMORY),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Self::Named { temporary, finished: false, .. } = self
            && let Err(error) = std::fs::remove_file(&temporary)
        {
            tracing::warn!(path = %temporary.display(), %error, "unfinished image not removed");
        }
    }
}

/// An image under construction; dropped unfinished, it leaves nothing behind.
#[derive(Debug)]
pub struct ImageWriter {
    place: Place,
    bulk: Bulk,
    chunks: Vec<Chunk>,
    end: u64,
    content_bytes: u64,
    parent: Option<Parent>,
    known: Vec<Vec<KnownChunk>>,
    unread_bytes: u64,
}

impl ImageWriter {
    /// Starts an image at `path` (created when finished; mode 0600), replacing an earlier one only then. Symbolic links
    /// at its name are replaced, never followed.
    ///
    /// # Errors
    /// [`ImageError::Io`] when the temporary file beside it cannot be made.
    pub fn create(path: &Path) -> Result<Self, ImageError> {
        let temporary = path.with_extension(format!("tmp-{}", std::process::id()));
        match std::fs::remove_file(&temporary) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(ImageError::Io { act: "remove the left-over", path: temporary, source });
            }
            _ => {}
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600).custom_flags(nix::libc::O_NOFOLLOW);
        let file = match options.open(&temporary) {
            Ok(file) => file,
            Err(source) => return Err(ImageError::Io { act: "create", path: temporary, source }),
        };
        // From here on a failure removes it.
        let place = Place::Named { temporary, path: path.into(), finished: false };
        // The umask may have taken even the owner's rights.
        let mode = file.set_permissions(PermissionsExt::from_mode(0o600));
        Self::over(place, mode.and_then(|()| Bulk::new(file)), "create")
    }

    /// As [`ImageWriter::create`]. What `parent` has, in whatever extent, stays where it is: the files get second names (hard links)
    /// beside the image, which are theirs as long as the image is, whatever becomes of the parent. So the parent is on
    /// the same file system. At most `most` files are used, and fifteen, those with most of the parent's contents; one of which less
    /// than a quarter is contents of the parent, or that can have no second name, is not.
    ///
    /// # Errors
    /// As [`ImageWriter::create`]; [`ImageError::Elsewhere`] and [`ImageError::Io`] if no file can have a second name.
    pub fn create_upon(path: &Path, parent: &Image, most: usize) -> Result<Self, ImageError> {
        let writer = Self::create(path)?;
        let parent = Parent::of(parent, path, most)?;
        Ok(Self { parent: Some(parent), ..writer })
    }

    /// Starts an image that is kept in this process's memory: the same format, in a memfd that has no name.
    ///
    /// # Errors
    /// [`ImageError::Io`] when there can be no such file.
    pub fn in_memory() -> Result<Self, ImageError> {
        let memory = memfd_create(IN_MEMORY, MFdFlags::MFD_CLOEXEC).map_err(io::Error::from);
        Self::over(Place::Memory, memory.and_then(|fd| Bulk::new(fd.into())), "make the memory of")
    }

    /// As [`ImageWriter::in_memory`], in the memory of an earlier image that is not needed any more: its pages need not
    /// be found and cleared again.
    ///
    /// # Errors
    /// [`ImageError::Io`].
    pub fn in_memory_of(earlier: File) -> Result<Self, ImageError> {
        Self::over(Place::Memory, Bulk::new(earlier), "use again")
    }

    fn over(place: Place, bulk: io::Result<Bulk>, act: &'static str) -> Result<Self, ImageError> {
        match bulk {
            Ok(bulk) => Ok(Self {
                place,
                bulk,
                chunks: Vec::new(),
                end: CONTENTS_OFFSET,
                content_bytes: 0,
                parent: None,
                known: Vec::new(),
                unread_bytes: 0,
            }),
            Err(source) => Err(ImageError::Io { act, path: place.label().into(), source }),
        }
    }

    /// Says what the chunks of each extent are known to be; what is missing is not known. What is all zeros, or has a hash that the parent has,
    /// is not read.
    #[must_use]
    pub fn knowing(self, known: Vec<Vec<KnownChunk>>) -> Self {
        Self { known, ..self }
    }

    /// What the chunks of so many extents, in their order, were when they were written.
    #[must_use]
    pub fn written(&self, extents: &[Extent<'_>]) -> Vec<Vec<KnownChunk>> {
        known_chunks(&self.chunks, extents.iter().map(Extent::bytes))
    }

    /// Writes the extents' bytes; the n-th becomes extent n. All-zero chunks cost nothing.
    ///
    /// # Errors
    /// [`ImageError::Io`] when the disk is full or fails, [`ImageError::Engine`] when an agent's engine does,
    /// [`ImageError::Stopped`] when `limit` is reached.
    pub fn write_contents(&mut self, extents: &[Extent<'_>], limit: &Limit) -> Result<(), ImageError> {
        let runs = runs(extents);
        let most = runs.iter().flatten().map(Part::padded).sum::<u64>() + CONTENTS_OFFSET;
        let mapping = self.mapping(most)?;
        let (parent, known) = (self.parent.as_ref(), &*self.known);
        let sink = Sink::new(extents, &self.bulk, parent, known, mapping, self.end..most);
        let before = |source| self.io("prepare", source);
        self.bulk.set_direct(true).map_err(before)?;
        let chunks = Mutex::new(Vec::with_capacity(runs.len()));
        let by_engine = extents.iter().any(|extent| extent.engine().is_some());
        let threads = if by_engine { TRANSFER_THREADS } else { self.bulk.threads() };
        for_each(runs.len(), threads, limit, |n, buffer| -> Result<_, ImageError> {
            let written = sink.write(&runs[n], buffer).map_err(|failure| match failure {
                Failure::Io(source) => self.io("write contents to", source),
                Failure::Engine(error) => error.into(),
            })?;
            chunks.lock().unwrap_or_else(PoisonError::into_inner).extend(written);
            Ok(())
        })?;
        let (end, unread_bytes) = (sink.end(), sink.unread_bytes());
        self.bulk.set_direct(false).map_err(before)?;
        let mut chunks = chunks.into_inner().unwrap_or_else(PoisonError::into_inner);
        chunks.sort_unstable_by_key(|c| (c.extent, c.offset));
        self.chunks = chunks;
        self.end = end;
        self.unread_bytes = unread_bytes;
        self.content_bytes = extents.iter().map(Extent::bytes).sum();
        Ok(())
    }

    /// The whole file as memory, if that is the faster way: its pages are there. `write` needs not clear the pages that
    /// it adds, which a mapping must; but it holds the file's lock, and one core copies at a time.
    fn mapping(&self, most: u64) -> Result<Option<Mapping>, ImageError> {
        let file = self.bulk.file();
        let status = file.metadata().map_err(|source| self.io("stat", source))?;
        // The front is written last: it may be no more than that which is missing.
        if !self.bulk.in_memory() || status.len() == 0 || status.blocks() * 512 + CONTENTS_OFFSET < most {
            return Ok(None);
        }
        if status.len() < most {
            file.set_len(most).map_err(|source| self.io("give its length to", source))?;
        }
        // Without one (a limit on address space) it is written as any file.
        Ok(Mapping::of(file, most, self.end).ok())
    }

    /// Writes tables and metadata, syncs, and gives the image its name.
    ///
    /// # Errors
    /// [`ImageError::Io`]; [`ImageError::Metadata`] when the metadata cannot be written as JSON.
    pub fn finish<M: Serialize>(mut self, metadata: &M) -> Result<Finished, ImageError> {
        let linked = self.parent.take().map(|parent| parent.into_used(&mut self.chunks)).unwrap_or_default();
        let metadata = serde_json::to_vec(metadata)
            .map_err(|source| ImageError::Metadata { path: self.place.label().into(), source })?;
        self.end_with(&metadata, linked)
    }

    /// A whole image at `path` of the same contents and metadata as `image`, whose hashes are checked.
    pub(super) fn copy(path: &Path, image: &Image, limit: &Limit) -> Result<Finished, ImageError> {
        let mut writer = Self::create(path)?;
        let before = |source| writer.io("prepare", source);
        writer.bulk.set_direct(true).map_err(before)?;
        let (end, chunks) =
            (AtomicU64::new(writer.end), Mutex::new(Vec::with_capacity(image.chunks().len())));
        image.each_run(limit, |bytes, run| {
            let place = end.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            writer.bulk.write(bytes, place).map_err(|source| writer.io("write contents to", source))?;
            let moved = run.iter().map(|(chunk, at)| Chunk { file: 0, file_offset: place + at, ..**chunk });
            chunks.lock().unwrap_or_else(PoisonError::into_inner).extend(moved);
            Ok(())
        })?;
        writer.bulk.set_direct(false).map_err(before)?;
        writer.end = end.into_inner();
        writer.chunks = chunks.into_inner().unwrap_or_else(PoisonError::into_inner);
        writer.chunks.sort_unstable_by_key(|c| (c.extent, c.offset));
        writer.content_bytes = writer.chunks.iter().map(|c| c.length).sum();
        writer.end_with(image.metadata_bytes(), Linked::default())
    }

    fn end_with(mut self, metadata: &[u8], linked: Linked) -> Result<Finished, ImageError> {
        let mut table = Vec::with_capacity(self.chunks.len() * CHUNK_ENTRY_BYTES);
        for chunk in &self.chunks {
            table.extend_from_slice(&chunk.encode());
        }
        let table_hash = *blake3::hash(&table).as_bytes();
        let chunks_at = self.end;
        let meta_at = chunks_at + table.len() as u64;
        let earlier_at = meta_at + metadata.len() as u64;
        let earlier: Vec<u8> = linked.names.iter().flat_map(EarlierFile::encode).collect();
        let file_bytes = earlier_at + earlier.len() as u64;
        let section = |kind, offset, length, hash| Section { kind, offset, length, hash };
        let meta_hash = *blake3::hash(metadata).as_bytes();
        let mut sections = vec![
            section(SectionKind::Contents, CONTENTS_OFFSET, self.end - CONTENTS_OFFSET, table_hash),
            section(SectionKind::Chunks, chunks_at, table.len() as u64, table_hash),
            section(SectionKind::Metadata, meta_at, metadata.len() as u64, meta_hash),
        ];
        if !earlier.is_empty() {
            let hash = *blake3::hash(&earlier).as_bytes();
            sections.push(section(SectionKind::Earlier, earlier_at, earlier.len() as u64, hash));
        }
        let mut front = encode_front(file_bytes, &sections);
        // An earlier image's bytes may be there.
        front.resize(size(CONTENTS_OFFSET), 0);
        let file = self.bulk.file();
        let write = |bytes: &[u8], at| file.write_all_at(bytes, at).map_err(|e| self.io("write", e));
        write(&table, chunks_at)?;
        write(metadata, meta_at)?;
        write(&earlier, earlier_at)?;
        write(&front, 0)?;
        file.set_len(file_bytes).map_err(|e| self.io("give its length to", e))?;
        if let Place::Named { .. } = self.place {
            file.sync_all().map_err(|e| self.io("sync", e))?;
        }
        let unneeded = match &self.place {
            Place::Named { path, .. } => linked.others(path)?,
            Place::Memory => Vec::new(),
        };
        self.place.publish()?;
        for path in unneeded {
            if let Err(error) = std::fs::remove_file(&path) {
                tracing::warn!(path = %path.display(), %error, "a file of an earlier image stays");
            }
        }
        let earlier = linked.keep();
        let bytes =
            |is_own: bool| self.chunks.iter().filter(|c| (c.file == 0) == is_own).map(|c| c.length).sum();
        let stats = WriteStats {
            content_bytes: self.content_bytes,
            stored_bytes: bytes(true),
            unchanged_bytes: bytes(false),
            unread_bytes: self.unread_bytes,
            file_bytes,
        };
        Ok(Finished { stats, file: self.bulk.into_file(), earlier })
    }

    fn io(&self, act: &'static str, source: io::Error) -> ImageError {
        ImageError::Io { act, path: self.place.label().into(), source }
    }
}

impl Place {
    /// Gives the image its name, for good.
    fn publish(&mut self) -> Result<(), ImageError> {
        let Self::Named { temporary, path, finished } = self else { return Ok(()) };
        std::fs::rename(&*temporary, &*path).map_err(|source| ImageError::Io {
            act: "rename",
            path: temporary.clone(),
            source,
        })?;
        // Until its name is on the disk, a failure removes it all the same.
        temporary.clone_from(path);
        let directory = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(directory).and_then(|d| d.sync_all()).map_err(|source| ImageError::Io {
            act: "sync the directory",
            path: directory.into(),
            source,
        })?;
        *finished = true;
        Ok(())
    }
}
