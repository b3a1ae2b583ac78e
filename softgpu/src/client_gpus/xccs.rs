// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queues that several XCCs process together, as on gfx942 in SPX.
//!
//! Every XCC has a descriptor and a save area of its own. It reads every packet of an AQL queue; of a dispatch it runs the
//! work-groups whose turn is its own: they go round the XCCs one by one (`compute_tg_chunk_size` is 1 in
//! `kfd_mqd_manager_v9.c`, `init_mqd_v9_4_3`), and the order of the XCCs is that of their descriptors. A PM4 queue is one
//! XCC's, here the first one's.
//!
//! INVARIANT: a wave is saved into the area of the XCC that runs it, and comes back from there. Which waves of an area are of
//! which dispatch is in the descriptor of the second XCC, and nowhere if there is only one XCC.

use std::borrow::Borrow;

use nix::errno::Errno;
use queues::save_area::WaveRecord;
use queues::words::count;

use super::mqd::{Reader, Writer};

/// A wave: a dispatch's, or one that was read. It has the size of a pointer or two, unlike a record, of which there may be
/// thousands.
#[derive(Clone, Debug)]
pub(super) enum Wave<'a> {
    Borrowed(&'a WaveRecord),
    Owned(Box<WaveRecord>),
}

impl Borrow<WaveRecord> for Wave<'_> {
    fn borrow(&self) -> &WaveRecord {
        match self {
            Self::Borrowed(wave) => wave,
            Self::Owned(wave) => wave,
        }
    }
}

impl PartialEq for Wave<'_> {
    fn eq(&self, other: &Self) -> bool {
        let (a, b): (&WaveRecord, &WaveRecord) = (self.borrow(), other.borrow());
        a == b
    }
}

impl Eq for Wave<'_> {}

impl Wave<'_> {
    /// The record, or a copy of the dispatch's.
    pub(super) fn into_owned(self) -> WaveRecord {
        match self {
            Self::Borrowed(wave) => wave.clone(),
            Self::Owned(wave) => *wave,
        }
    }
}

/// The waves of a dispatch, each with the number of its XCC.
pub(super) type DispatchWaves<'a> = Vec<(usize, Wave<'a>)>;

/// The waves of a queue, a list for each XCC, and how many of a list each dispatch has.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SplitWaves<'a> {
    /// In the order of the dispatches.
    pub(super) of_xcc: Vec<Vec<Wave<'a>>>,
    /// By dispatch, then by XCC.
    counts: Vec<Vec<usize>>,
}

impl<'a> SplitWaves<'a> {
    /// Sorts the waves of some dispatches by XCC. Waves of an XCC that there is not are the last one's.
    pub(super) fn new(dispatches: Vec<DispatchWaves<'a>>, xccs: usize) -> Self {
        let xccs = xccs.max(1);
        let mut split = Self { of_xcc: vec![Vec::new(); xccs], counts: Vec::new() };
        for waves in dispatches.into_iter().filter(|waves| !waves.is_empty()) {
            let mut counts = vec![0; xccs];
            for (xcc, wave) in waves {
                let xcc = xcc.min(xccs - 1);
                counts[xcc] += 1;
                split.of_xcc[xcc].push(wave);
            }
            split.counts.push(counts);
        }
        split
    }

    /// Writes which waves are of which dispatch.
    pub(super) fn store(&self, writer: &mut Writer) {
        writer.put(count(self.counts.len()));
        self.counts.iter().flatten().for_each(|&waves| writer.put(count(waves)));
    }

    /// The waves of the areas, one dispatch behind another, as [`SplitWaves::store`] says.
    ///
    /// # Errors
    /// `EINVAL` when the areas hold other waves.
    pub(super) fn load(reader: &mut Reader<'_>, of_xcc: Vec<Vec<WaveRecord>>) -> Result<Self, Errno> {
        let all: usize = of_xcc.iter().map(Vec::len).sum();
        let dispatches = usize::try_from(reader.take()).map_err(|_| Errno::EINVAL)?;
        // A dispatch that is listed has a wave.
        if dispatches > all {
            return Err(Errno::EINVAL);
        }
        let counts: Vec<Vec<usize>> = (0..dispatches)
            .map(|_| of_xcc.iter().map(|_| usize::try_from(reader.take()).unwrap_or(usize::MAX)).collect())
            .collect();
        let listed = |xcc: usize| counts.iter().fold(0_usize, |sum, waves| sum.saturating_add(waves[xcc]));
        if of_xcc.iter().enumerate().any(|(xcc, waves)| listed(xcc) != waves.len()) {
            return Err(Errno::EINVAL);
        }
        let owned =
            |waves: Vec<WaveRecord>| waves.into_iter().map(|wave| Wave::Owned(Box::new(wave))).collect();
        Ok(Self { of_xcc: of_xcc.into_iter().map(owned).collect(), counts })
    }

    /// The waves, one dispatch behind another.
    pub(super) fn into_dispatches(self) -> Vec<WaveRecord> {
        let mut lists: Vec<_> = self.of_xcc.into_iter().map(Vec::into_iter).collect();
        let mut all = Vec::new();
        for counts in &self.counts {
            for (list, &waves) in lists.iter_mut().zip(counts) {
                all.extend(list.by_ref().take(waves).map(Wave::into_owned));
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Borrow;

    use super::*;
    use crate::client_gpus::tests::some_queue;
    use crate::hardware::HwQueueKind;

    fn pcs(waves: &[impl Borrow<WaveRecord>]) -> Vec<u64> {
        waves.iter().map(|wave| wave.borrow().pc).collect()
    }

    fn owned(split: &SplitWaves<'_>) -> Vec<Vec<WaveRecord>> {
        let list = |waves: &Vec<Wave<'_>>| waves.iter().map(|wave| wave.clone().into_owned()).collect();
        split.of_xcc.iter().map(list).collect()
    }

    fn alone(pc: u64) -> Wave<'static> {
        Wave::Owned(Box::new(WaveRecord::alone(pc)))
    }

    #[test]
    fn waves_of_two_dispatches_are_told_apart_in_the_areas_of_three_xccs() {
        let dispatches = vec![
            vec![(0, alone(1)), (2, alone(2)), (0, alone(3))],
            Vec::new(),
            vec![(2, alone(4)), (1, alone(5)), (0, alone(6))],
        ];
        let split = SplitWaves::new(dispatches, 3);
        let areas: Vec<_> = split.of_xcc.iter().map(|waves| pcs(waves)).collect();
        assert_eq!(areas, [vec![1, 3, 6], vec![5], vec![2, 4]]);
        let mut writer = Writer::new(&some_queue(HwQueueKind::Aql), 3);
        split.store(&mut writer);
        let mqd = writer.finish();
        let mut reader = Reader::new(&mqd, HwQueueKind::Aql).unwrap();
        let loaded = SplitWaves::load(&mut reader, owned(&split)).unwrap();
        assert_eq!(loaded, split);
        assert_eq!(pcs(&loaded.into_dispatches()), [1, 3, 2, 6, 5, 4]);
        // One wave more or less than the areas hold.
        for areas in [
            vec![vec![]; 3],
            vec![
                vec![WaveRecord::alone(1); 4],
                vec![WaveRecord::alone(5)],
                vec![WaveRecord::alone(2), WaveRecord::alone(4)],
            ],
        ] {
            let mut reader = Reader::new(&mqd, HwQueueKind::Aql).unwrap();
            assert_eq!(SplitWaves::load(&mut reader, areas), Err(Errno::EINVAL));
        }
    }
}
