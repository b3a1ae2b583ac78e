// SPDX-License-Identifier: MIT OR Apache-2.0
//! A checkpoint directory as a source of chunks.
//!
//! INVARIANT: what is given out as a chunk has its hash, and files are taken as a restore takes them: of trusted owners,
//! through no link, as the manifest lists them.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use queues::words::{count, size};
use stasis::criu::{
    CRIU_DIRECTORY, MANIFEST_FILE, Manifest, NO_PLUGINS, OpenDirectory, SESSION_DIRECTORY, SESSION_FILE,
    SessionIndex, Trust, open_image,
};
use stasis::image::{EarlierFile, own_chunks};

use crate::Progress;
use crate::cut::{self, Cut, Grain};
use crate::error::{StoreError, failed};
use crate::index::{ChunkIndex, ChunkName, IndexedFile, Part};

/// A file that is to be cut.
#[derive(Debug)]
pub(crate) struct Source {
    /// What errors call it.
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
    /// The pieces whose hashes are known, in order.
    pub(crate) known: Vec<Cut>,
}

/// A complete checkpoint, cut into chunks.
#[derive(Debug)]
pub struct Checkpoint {
    opened: OpenDirectory,
    index: ChunkIndex,
    /// That of the index.
    text: Vec<u8>,
    /// The files' paths in the directory; those of the index, but for images of a running process.
    paths: Vec<String>,
    /// Where each chunk is first.
    places: Vec<(usize, u64)>,
}

impl Checkpoint {
    /// Opens the directory of a checkpoint, or of a session, whose files are those of `trust`, and cuts its files by `grain`.
    ///
    /// # Errors
    /// [`StoreError::Manifest`], [`StoreError::Image`], [`StoreError::NotListed`] and [`StoreError::Io`] when it is not
    /// complete or not as it was written.
    pub fn open(
        directory: &Path,
        trust: Trust,
        grain: Grain,
        progress: Progress<'_>,
    ) -> Result<Self, StoreError> {
        let directory = directory.canonicalize().map_err(failed("find", directory))?;
        let opened = OpenDirectory::open(&directory, trust.clone())?;
        let mut found = Found::default();
        match SessionIndex::read_in(&opened)? {
            None => found.tree(&opened, "", grain)?,
            Some(session) => {
                found.directories.push(SESSION_DIRECTORY.to_owned());
                found.file(&opened, SESSION_FILE.to_owned())?;
                for pid in &session.trees {
                    found.directories.push(pid.to_string());
                    let tree = OpenDirectory::open(&directory.join(pid.to_string()), trust.clone())?;
                    found.tree(&tree, &format!("{pid}/"), grain)?;
                }
            }
        }
        let paths = found.paths.clone();
        if grain != Grain::Table {
            found.sources.iter_mut().for_each(|source| source.known.clear());
        }
        Self::cut(opened, found, paths, grain, progress)
    }

    /// Cuts images that are copied of a running process into `directory`: each by its path there, and by that which it has in the
    /// checkpoint that is made upon it.
    ///
    /// # Errors
    /// As for [`Checkpoint::open`].
    pub fn of_images(
        directory: &Path,
        images: &[(String, String)],
        progress: Progress<'_>,
    ) -> Result<Self, StoreError> {
        let opened = OpenDirectory::open(directory, Trust::of_caller())?;
        let (mut found, mut paths) = (Found::default(), Vec::new());
        for (path, name) in images {
            let mut known = HashMap::new();
            note_chunks(&opened, path, Grain::Table, &mut known)?;
            for (path, known) in known {
                let place = directory.join(&path);
                let bytes = opened.file(&path)?.metadata().map_err(failed("stat", &place))?.len();
                let file = Path::new(&path).file_name().unwrap_or_default();
                found.paths.push(Path::new(name).with_file_name(file).to_string_lossy().into_owned());
                found.sources.push(Source { path: place, bytes, known });
                paths.push(path);
            }
            let above = Path::new(name).ancestors().skip(1).filter(|above| !above.as_os_str().is_empty());
            let above: Vec<String> = above.map(|above| above.to_string_lossy().into_owned()).collect();
            let new = above.into_iter().rev().filter(|above| !found.directories.contains(above));
            let new: Vec<String> = new.collect();
            found.directories.extend(new);
        }
        Self::cut(opened, found, paths, Grain::Table, progress)
    }

    fn cut(
        opened: OpenDirectory,
        found: Found,
        paths: Vec<String>,
        grain: Grain,
        progress: Progress<'_>,
    ) -> Result<Self, StoreError> {
        let open = |n: usize| Ok(opened.file(&paths[n])?);
        let cuts = cut::all(&found.sources, grain, open, progress)?;
        let (index, places) = assemble(found.directories, found.paths, &found.sources, &cuts);
        // Now, while nothing depends on it.
        let index = index.checked()?;
        let text = index.encode()?;
        Ok(Self { opened, index, text, paths, places })
    }

    /// Its index.
    #[must_use]
    pub fn index(&self) -> &ChunkIndex {
        &self.index
    }

    /// The text of its index.
    pub(crate) fn text(&self) -> &[u8] {
        &self.text
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.opened.path()
    }

    /// The bytes of a chunk, by its place in the list of the index.
    ///
    /// # Errors
    /// [`StoreError::Changed`] when they have another hash, [`StoreError::Io`].
    ///
    /// # Panics
    /// When there are not as many chunks.
    pub fn read(&self, chunk: usize) -> Result<Vec<u8>, StoreError> {
        let (name, (file, offset)) = (&self.index.chunks[chunk], self.places[chunk]);
        let relative = &self.paths[file];
        let path = self.opened.path().join(relative);
        let opened: File = self.opened.file(relative)?;
        let mut bytes = vec![0; size(name.bytes)];
        opened.read_exact_at(&mut bytes, offset).map_err(failed("read", &path))?;
        match ChunkName::of(&bytes) == *name {
            true => Ok(bytes),
            false => Err(StoreError::Changed { path, offset, found: name.bytes }),
        }
    }
}

/// Notes where the chunks of an image are, in its own file and in those of earlier ones.
fn note_chunks(
    directory: &OpenDirectory,
    name: &str,
    grain: Grain,
    known: &mut HashMap<String, Vec<Cut>>,
) -> Result<(), StoreError> {
    let image = open_image(directory, name)?;
    if grain != Grain::Table {
        // Otherwise each chunk is compared with its hash when it is read.
        image.verify()?;
    }
    let beside =
        |earlier: &EarlierFile| Path::new(name).with_file_name(&earlier.name).to_string_lossy().into_owned();
    for file in std::iter::once(name.to_owned()).chain(image.earlier().iter().map(beside)) {
        // As in its own table, wherever it is: an earlier file has chunks that this image does not use.
        let chunks = own_chunks(&directory.file(&file)?, &directory.path().join(&file))?;
        known.insert(file, cut::of_chunks(&chunks));
    }
    Ok(())
}

/// What a checkpoint has.
#[derive(Debug, Default)]
struct Found {
    directories: Vec<String>,
    /// The files' paths in the directory, and what is known of each.
    paths: Vec<String>,
    sources: Vec<Source>,
}

impl Found {
    /// Adds the files of a tree, whose directory has the paths that begin with `prefix`.
    fn tree(&mut self, tree: &OpenDirectory, prefix: &str, grain: Grain) -> Result<(), StoreError> {
        let manifest = Manifest::read_in(tree)?;
        if !manifest.is_sealed() {
            let directory = tree.path().into();
            return Err(StoreError::NotListed { directory, layout: manifest.layout });
        }
        // First: what an image says of itself says more than a list of hashes. Its chunks are checked as they are read.
        let mut known: HashMap<String, Vec<Cut>> = HashMap::new();
        for name in manifest.image_names() {
            note_chunks(tree, &name, grain, &mut known)?;
        }
        manifest.check_files(tree, true, &|_| ())?;
        let members = manifest.members.iter().map(|member| member.directory.clone());
        let own = [
            CRIU_DIRECTORY.to_owned(),
            format!("{CRIU_DIRECTORY}/{NO_PLUGINS}"),
            SESSION_DIRECTORY.to_owned(),
        ];
        for directory in own.into_iter().chain(members) {
            if tree.path().join(&directory).is_dir() {
                self.directories.push(format!("{prefix}{directory}"));
            }
        }
        for file in &manifest.files {
            let known = known.remove(&file.path).unwrap_or_default();
            self.paths.push(format!("{prefix}{}", file.path));
            self.sources.push(Source { path: tree.path().join(&file.path), bytes: file.bytes, known });
        }
        self.file(tree, format!("{prefix}{MANIFEST_FILE}"))
    }

    /// Adds a file in the directory that its path names last.
    fn file(&mut self, directory: &OpenDirectory, path: String) -> Result<(), StoreError> {
        let name = path.rsplit('/').next().unwrap_or(&path);
        let place = directory.path().join(name);
        let status = directory.file(name)?.metadata().map_err(failed("stat", &place))?;
        self.sources.push(Source { path: place, bytes: status.len(), known: Vec::new() });
        self.paths.push(path);
        Ok(())
    }
}

/// The index of files that were cut, and where each chunk is first.
fn assemble(
    directories: Vec<String>,
    paths: Vec<String>,
    sources: &[Source],
    cuts: &[Vec<Cut>],
) -> (ChunkIndex, Vec<(usize, u64)>) {
    let mut index = ChunkIndex::new();
    index.directories = directories;
    let (mut numbers, mut places) = (HashMap::new(), Vec::new());
    for (n, ((path, source), cuts)) in paths.into_iter().zip(sources).zip(cuts).enumerate() {
        let mut parts: Vec<Part> = Vec::with_capacity(cuts.len());
        for cut in cuts {
            match (cut.hash, parts.last_mut()) {
                (None, Some(Part::Zeros { zeros })) => *zeros += cut.bytes,
                (None, _) => parts.push(Part::Zeros { zeros: cut.bytes }),
                (Some(hash), _) => {
                    let number = *numbers.entry((hash, cut.bytes)).or_insert_with(|| {
                        index.chunks.push(ChunkName { hash, bytes: cut.bytes });
                        places.push((n, cut.offset));
                        index.chunks.len() - 1
                    });
                    parts.push(Part::Chunk(count(number)));
                }
            }
        }
        index.files.push(IndexedFile { path, bytes: source.bytes, parts });
    }
    (index, places)
}
