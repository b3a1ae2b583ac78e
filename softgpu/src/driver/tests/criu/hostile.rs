// SPDX-License-Identifier: MIT OR Apache-2.0
//! RESTORE of arbitrary bytes: it answers, and the process can be torn down afterwards.

use proptest::prelude::*;

use super::super::fuzz::take_down;
use super::super::queues::BASE;
use super::*;

/// A checkpoint of queues, buffers and events, taken once.
fn honest() -> Taken {
    let client = Client::pair();
    let mut args = client.queue_parts(0, BASE).args;
    client.create(&mut args).unwrap();
    args.queue_type = KFD_IOC_QUEUE_TYPE_SDMA;
    client.create(&mut args).unwrap();
    client.create_event(KFD_IOC_EVENT_SIGNAL, false, client.event_page()).unwrap();
    client.create_event(KFD_IOC_EVENT_MEMORY, false, 0).unwrap();
    take(&client)
}

/// A number that is meaningful in some field.
fn number() -> impl Strategy<Value = u32> {
    prop_oneof![
        0u32..16,
        any::<u32>(),
        prop::sample::select(vec![512, 1024, 2048, 4096, 0x100, 0x7fff_ffff, 1 << 31])
    ]
}

fn check(taken: &Taken) -> Result<(), TestCaseError> {
    let heir = elsewhere(KernelModel::Fixed);
    let _ = restore(&heir, taken);
    let _ = kfd::blob::Blob::parse(&taken.blob, taken.args.num_devices, taken.args.num_bos);
    prop_assert_eq!(heir.hardware.running.lock().len(), 0);
    let _ = resume(&heir);
    let _ = pause(&heir);
    take_down(&heir)
}

proptest! {
    #[test]
    fn no_change_of_a_checkpoint_panics(
        words in prop::collection::vec((any::<prop::sample::Index>(), number()), 1..12),
        buckets in prop::collection::vec((any::<prop::sample::Index>(), number()), 0..4),
        cut in prop::option::weighted(0.2, any::<prop::sample::Index>()),
    ) {
        let mut taken = honest();
        for (at, value) in words {
            let offset = 4 * at.index(taken.blob.len() / 4);
            taken.blob[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
        }
        for (at, value) in buckets {
            let words: &mut [u32] = bytemuck::cast_slice_mut(&mut taken.bos);
            let at = at.index(words.len());
            words[at] = value;
        }
        if let Some(cut) = cut {
            taken.blob.truncate(cut.index(taken.blob.len()));
            taken.args.priv_data_size = taken.blob.len() as u64;
        }
        check(&taken)?;
    }

    #[test]
    fn no_bytes_panic(
        blob in prop::collection::vec(any::<u8>(), 0..3000),
        start in 0usize..4,
        bos in 1u32..3,
        objects in 0u32..4,
    ) {
        let mut taken = honest();
        // The first parts may be valid, so that later parts are reached.
        let keep = [0, 8, 8 + 16, 8 + 16 + 272][start];
        taken.blob.splice(keep.., blob);
        taken.args.priv_data_size = taken.blob.len() as u64;
        (taken.args.num_bos, taken.args.num_objects) = (bos, objects);
        check(&taken)?;
    }
}
