// SPDX-License-Identifier: MIT OR Apache-2.0
//! Taking checkpoints out, and what nobody needs any more.
//!
//! A pack of which no checkpoint needs anything is removed. Of one of which checkpoints need less than half, what they need is written into
//! other packs first, and their entries are replaced by such that say so; so are those of checkpoints that have a chunk in
//! a place of their own which a newer one has, too.
//!
//! INVARIANT: an entry is replaced when the packs that it says are there for good, and a pack is removed when no entry says it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

use super::Store;
use super::add::{IndexText, Known, Writer};
use super::check_name;
use super::read::Opened;
use crate::backend::Collecting;
use crate::entry::{Entry, encode_places};
use crate::error::StoreError;
use crate::index::ChunkName;
use crate::object::Codec;
use crate::pack::{Location, MAGIC, PackName, PackWriter, Placed, batches};

/// How a store is collected.
#[derive(Clone, Copy, Debug, Default)]
pub struct CollectOptions {
    /// Take processes for dead that add to a bucket, or collect it, and have not ended. They fail if they are not dead.
    pub abandon: bool,
}

/// What was collected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Collected {
    /// Packs that no checkpoint needs, and files that commands which ended have left.
    pub removed: u64,
    /// Their bytes.
    pub removed_bytes: u64,
    /// Bytes of what was written again of them, since a checkpoint needs it.
    pub rewritten_bytes: u64,
    /// Packs that stay.
    pub left: u64,
    /// Their bytes.
    pub left_bytes: u64,
}

/// Where objects are that were somewhere else.
type Moves = HashMap<(ChunkName, Location), Location>;

/// Where chunks are: of each all places, that of the newest checkpoint first.
type Places = HashMap<ChunkName, Vec<Location>>;

/// What checkpoints need.
#[derive(Debug, Default)]
struct Needs {
    places: Places,
    /// The hashes of their entries.
    entries: HashMap<String, blake3::Hash>,
    in_use: InUse,
}

/// What checkpoints need, as a whole.
#[derive(Debug, Default)]
struct InUse {
    packs: HashSet<PackName>,
    /// Names of objects that have files of their own.
    files: HashSet<[u8; 32]>,
}

impl InUse {
    fn note(&mut self, opened: &Opened, codec: &Codec) {
        for placed in opened.all() {
            match placed.location {
                Location::Pack { pack, .. } => drop(self.packs.insert(pack)),
                Location::File => drop(self.files.insert(codec.name(&placed.chunk.hash))),
            }
        }
    }
}

impl Store {
    /// Takes a checkpoint out. Its chunks stay until they are collected.
    ///
    /// # Errors
    /// [`StoreError::Missing`], [`StoreError::Adding`], [`StoreError::Io`], [`StoreError::Remote`].
    pub fn remove(&self, name: &str) -> Result<(), StoreError> {
        check_name(name)?;
        match self.backend.remove(name)? {
            true => Ok(()),
            false => Err(self.no_such(name)),
        }
    }

    /// Removes what no checkpoint has. It waits for those who add, and in a directory for those who read.
    ///
    /// # Errors
    /// [`StoreError::Index`], [`StoreError::Object`] or [`StoreError::Pack`] when a checkpoint cannot be read, whose chunks are not
    /// known then: nothing was removed. [`StoreError::Adding`], [`StoreError::Collecting`], [`StoreError::Superseded`],
    /// [`StoreError::Io`], [`StoreError::Remote`].
    pub fn collect(&self, options: CollectOptions) -> Result<Collected, StoreError> {
        let mut collecting = self.backend.collect(options.abandon)?;
        let packs: BTreeMap<PackName, u64> = self.backend.packs()?.into_iter().collect();
        let Needs { places, entries, in_use } = self.needs()?;
        // What was read is what nobody else who collects could have replaced, and a later one makes sure that it is not this any more.
        collecting.confirm()?;
        let mut collected = Collected::default();
        let moves = self.move_objects(&*collecting, &packs, &places, &mut collected)?;
        if !moves.is_empty() {
            self.each(|name, opened| match entries.get(&name) {
                Some(hash) if *hash == blake3::hash(&opened.bytes) => {
                    self.replace_entry(&*collecting, &name, &opened, &moves)
                }
                _ => Ok(()),
            })?;
        }
        let (in_use, now) = match moves.is_empty() {
            true => (in_use, packs.clone()),
            // As it is now: entries have been replaced, and packs written.
            false => (self.in_use()?, self.backend.packs()?.into_iter().collect()),
        };
        let InUse { packs: left, files } = in_use;
        let removed: Vec<PackName> = packs.keys().filter(|pack| !left.contains(*pack)).copied().collect();
        collecting.remove(&removed)?;
        let swept = collecting.sweep(&files)?;
        let bytes =
            |packs: &mut dyn Iterator<Item = &PackName>| packs.filter_map(|pack| now.get(pack)).sum::<u64>();
        collected.removed = removed.len() as u64 + swept.removed;
        collected.removed_bytes = bytes(&mut removed.iter()) + swept.removed_bytes;
        let kept = || left.iter().filter(|pack| now.contains_key(*pack));
        collected.left = kept().count() as u64 + swept.left;
        collected.left_bytes = bytes(&mut kept()) + swept.left_bytes;
        Ok(collected)
    }

    /// What checkpoints need.
    fn needs(&self) -> Result<Needs, StoreError> {
        let mut needs = Needs::default();
        self.each(|name, opened| {
            needs.entries.insert(name, blake3::hash(&opened.bytes));
            needs.in_use.note(&opened, &self.codec);
            for Placed { chunk, location } in opened.all().filter(|placed| placed.location != Location::File)
            {
                let places = needs.places.entry(chunk).or_default();
                if !places.contains(&location) {
                    places.push(location);
                }
            }
            Ok(())
        })?;
        Ok(needs)
    }

    /// What checkpoints need now, as a whole.
    fn in_use(&self) -> Result<InUse, StoreError> {
        let mut in_use = InUse::default();
        self.each(|_, opened| {
            in_use.note(&opened, &self.codec);
            Ok(())
        })?;
        Ok(in_use)
    }

    /// Writes objects again that are in packs of which less than half is needed.
    fn move_objects(
        &self,
        collecting: &dyn Collecting,
        packs: &BTreeMap<PackName, u64>,
        needs: &Places,
        collected: &mut Collected,
    ) -> Result<Moves, StoreError> {
        // The newest place is where a chunk stays.
        let first = |places: &[Location]| places.first().copied().unwrap_or(Location::File);
        let mut needed: HashMap<PackName, u64> = HashMap::new();
        for places in needs.values() {
            if let Location::Pack { pack, bytes, .. } = first(places) {
                *needed.entry(pack).or_default() += u64::from(bytes);
            }
        }
        let is_sparse = |location: &Location| match location {
            Location::File => false,
            Location::Pack { pack, .. } => {
                let length = packs.get(pack).map_or(0, |bytes| bytes.saturating_sub(MAGIC.len() as u64));
                needed.get(pack).is_some_and(|needed| needed * 2 < length)
            }
        };
        let chunks = needs.iter().map(|(chunk, places)| Placed { chunk: *chunk, location: first(places) });
        let mut moved: Vec<Placed> = chunks.filter(|placed| is_sparse(&placed.location)).collect();
        moved.sort_unstable_by_key(|placed| placed.location);
        let written = loop {
            match self.copy(collecting, &moved) {
                Err(error @ (StoreError::Object { .. } | StoreError::Pack { .. })) => {
                    tracing::warn!(%error, "a damaged pack stays as it is");
                    let before = moved.len();
                    self.leave_damaged(&mut moved);
                    if moved.len() == before {
                        return Err(error);
                    }
                }
                written => break written?,
            }
        };
        collected.rewritten_bytes = written.values().map(length).sum();
        let mut moves = Moves::new();
        for (chunk, places) in needs {
            let to = written.get(chunk).copied().unwrap_or_else(|| first(places));
            moves.extend(places.iter().filter(|from| **from != to).map(|from| ((*chunk, *from), to)));
        }
        Ok(moves)
    }

    /// Takes out what is in packs of which something cannot be read.
    fn leave_damaged(&self, moved: &mut Vec<Placed>) {
        let pack = |placed: &Placed| match placed.location {
            Location::Pack { pack, .. } => Some(pack),
            Location::File => None,
        };
        let mut damaged = HashSet::new();
        for group in moved.chunk_by(|one, other| pack(one) == pack(other)) {
            if self.read_all(group, |_, _| Ok(())).is_err() {
                damaged.extend(group.first().and_then(pack));
            }
        }
        moved.retain(|placed| pack(placed).is_none_or(|pack| !damaged.contains(&pack)));
    }

    /// Writes these objects into new packs; returns where they are.
    fn copy(
        &self,
        collecting: &dyn Collecting,
        moved: &[Placed],
    ) -> Result<HashMap<ChunkName, Location>, StoreError> {
        let batches = batches(moved.iter().map(|placed| length(&placed.location)));
        let places = Mutex::new(HashMap::new());
        // Reading has threads of its own.
        for (from, to) in batches {
            let moved = &moved[from..to];
            let pack = Mutex::new(PackWriter::new()?);
            self.read_objects(moved, |n, _, object| {
                // A panic in between leaves an object that nobody knows.
                let at = pack.lock().unwrap_or_else(PoisonError::into_inner).push(object);
                places.lock().unwrap_or_else(PoisonError::into_inner).insert(moved[n].chunk, at);
                Ok(())
            })?;
            let (name, bytes) = pack.into_inner().unwrap_or_else(PoisonError::into_inner).finish();
            collecting.write(name, &bytes)?;
        }
        Ok(places.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    /// Has the entry of a checkpoint say where its objects are now.
    fn replace_entry(
        &self,
        collecting: &dyn Collecting,
        name: &str,
        opened: &Opened,
        moves: &Moves,
    ) -> Result<(), StoreError> {
        let now =
            |placed: &Placed| moves.get(&(placed.chunk, placed.location)).copied().unwrap_or(placed.location);
        if opened.entry.places.is_none() || opened.all().all(|placed| now(&placed) == placed.location) {
            return Ok(());
        }
        let piece = |placed: &Placed| Placed { chunk: placed.chunk, location: now(placed) };
        let index = opened.entry.index.iter().map(piece).collect();
        let locations: Vec<Location> = opened.chunks().map(|placed| now(&placed)).collect();
        let text = encode_places(&locations)?;
        let old = opened.entry.places.iter().flatten();
        let mut known: Known = old.map(|placed| (placed.chunk, now(placed))).collect();
        let write = |pack, bytes: &[u8]| collecting.write(pack, bytes);
        let mut writer = Writer::new(self, &write);
        let places = writer.write_text(&IndexText::cut(&text, self.grain()), &mut known)?;
        let entry = Entry { index, places: Some(places) }.encode(
            name,
            &self.codec,
            Entry::identity(&opened.bytes),
        )?;
        // Otherwise somebody has removed it meanwhile.
        collecting.replace(name, &opened.bytes, &entry).map(drop)
    }
}

fn length(location: &Location) -> u64 {
    match *location {
        Location::File => 0,
        Location::Pack { bytes, .. } => bytes.into(),
    }
}
