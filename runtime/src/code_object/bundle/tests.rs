// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bundles by LLVM's tool, bundles built here from the documented layout, and damaged ones.

use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::ZlibEncoder;
use proptest::prelude::*;
use ruzstd::encoding::CompressionLevel;

use super::*;
use crate::code_object::CodeObject;

const PLAIN: &[u8] = include_bytes!("golden/plain.hipfb");
const ZSTD: &[u8] = include_bytes!("golden/zstd.hipfb");
/// Both.
const ON: AgentFeatures = AgentFeatures { xnack: true, sramecc: true };
const OFF: AgentFeatures = AgentFeatures { xnack: false, sramecc: false };
const ECC: AgentFeatures = AgentFeatures { xnack: false, sramecc: true };
const TRIPLE: &str = "hipv4-amdgcn-amd-amdhsa--";

fn target(name: &str) -> &'static Target {
    Target::by_name(name).unwrap()
}

/// The layout of a bundle, with these fields of its entries, and what follows them.
fn header(count: u64, entries: &[(u64, u64, u64, &[u8])], rest: &[u8]) -> Vec<u8> {
    let mut file = [MAGIC, &count.to_le_bytes()].concat();
    for (offset, size, length, id) in entries {
        [offset, size, length].iter().for_each(|number| file.extend(number.to_le_bytes()));
        file.extend_from_slice(id);
    }
    file.extend_from_slice(rest);
    file
}

/// A bundle of these entries.
fn bundle(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let start: usize = 32 + entries.iter().map(|(id, _)| 24 + id.len()).sum::<usize>();
    let mut at = start as u64;
    let fields = entries.iter().map(|(id, code)| {
        let offset = at;
        at += code.len() as u64;
        (offset, code.len() as u64, id.len() as u64, id.as_bytes())
    });
    let fields: Vec<_> = fields.collect();
    let code: Vec<u8> = entries.iter().flat_map(|(_, code)| *code).copied().collect();
    header(entries.len() as u64, &fields, &code)
}

/// A bundle of entries for these targets, each with its id for code.
fn for_targets(ids: &[&str]) -> Vec<u8> {
    bundle(&ids.iter().map(|id| (*id, id.as_bytes())).collect::<Vec<_>>())
}

/// The head of a compressed bundle of these bytes and this hash, in front of `data`.
fn head(version: u16, method: u16, bytes: u64, hash: u64, data: &[u8]) -> Vec<u8> {
    let number = |number: u64| {
        if version == 3 { number.to_le_bytes().to_vec() } else { number.to_le_bytes()[..4].to_vec() }
    };
    let length = [20, 24, 32][usize::from(version.clamp(1, 3)) - 1] + data.len() as u64;
    let in_file = if version == 1 { Vec::new() } else { number(length) };
    [
        b"CCOB".as_slice(),
        &version.to_le_bytes(),
        &method.to_le_bytes(),
        &in_file,
        &number(bytes),
        &hash.to_le_bytes(),
        data,
    ]
    .concat()
}

fn hash(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(md5::compute(bytes).0[..8].try_into().unwrap())
}

fn deflate(bytes: &[u8]) -> Vec<u8> {
    let mut data = Vec::new();
    ZlibEncoder::new(bytes, Compression::default()).read_to_end(&mut data).unwrap();
    data
}

/// Compressed by methods 0 and 1.
fn both(bytes: &[u8]) -> [Vec<u8>; 2] {
    [deflate(bytes), ruzstd::encoding::compress_to_vec(bytes, CompressionLevel::Fastest)]
}

fn error(file: &[u8]) -> BundleError {
    Bundle::open(file).unwrap_err()
}

/// Everything that can be read of a file, as ids and code objects.
fn all(file: &[u8]) -> Result<Vec<(String, Vec<u8>)>, BundleError> {
    let bundle = Bundle::open(file)?;
    let all = bundle.entries().iter().map(|entry| {
        let code = bundle.code(entry)?;
        assert_eq!(code.len() as u64, entry.bytes());
        Ok((entry.id().to_owned(), code.into_owned()))
    });
    all.collect()
}

#[test]
fn bundles_by_llvm_have_an_object_for_each_agent() {
    assert_eq!(all(ZSTD).unwrap(), all(PLAIN).unwrap());
    for (name, features, isa) in [
        ("gfx1100", OFF, "gfx1100"),
        ("gfx1101", OFF, "gfx11-generic"),
        ("gfx90a", ECC, "gfx90a:sramecc+:xnack-"),
        ("gfx90a", ON, "gfx90a:sramecc+:xnack+"),
    ] {
        for file in [PLAIN, ZSTD] {
            assert!(Bundle::is_bundle(file));
            let code = code_for(file, target(name), features).unwrap();
            let object = CodeObject::parse(&code).unwrap();
            assert_eq!(object.isa().to_string(), isa, "{name}");
            object.check_agent(target(name), features).unwrap();
            assert_eq!(object.kernels()[0].name, "mark");
        }
    }
    let refused = code_for(ZSTD, target("gfx90a"), OFF).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "The offload bundle has no code for gfx90a:sramecc-:xnack-; its entries are: host-x86_64-unknown-linux-gnu-, \
         hipv4-amdgcn-amd-amdhsa--gfx11-generic, hipv4-amdgcn-amd-amdhsa--gfx1100, \
         hipv4-amdgcn-amd-amdhsa--gfx90a:sramecc+:xnack-, hipv4-amdgcn-amd-amdhsa--gfx90a:sramecc+:xnack+"
    );
    let bundle = Bundle::open(PLAIN).unwrap();
    let devices: Vec<bool> = bundle.entries().iter().map(Entry::is_device).collect();
    assert_eq!(devices, [false, true, true, true, true]);
    assert_eq!(bundle.first_device().unwrap().id(), "hipv4-amdgcn-amd-amdhsa--gfx11-generic");
}

#[test]
fn file_that_is_no_bundle_is_the_code_itself() {
    assert!(matches!(code_for(b"\x7fELF", target("gfx1100"), OFF), Ok(Cow::Borrowed(b"\x7fELF"))));
    assert!(!Bundle::is_bundle(&MAGIC[..23]));
    assert!(matches!(error(b"\x7fELF, and more than a magic string"), BundleError::NotBundle { .. }));
}

#[test]
fn every_version_and_method_of_compression_is_read() {
    let plain = for_targets(&["host-x86_64-unknown-linux-gnu-", "hip-amdgcn-amd-amdhsa--gfx1100"]);
    for (method, data) in both(&plain).iter().enumerate() {
        for version in 1..=3 {
            let file = head(version, method as u16, plain.len() as u64, hash(&plain), data);
            assert_eq!(all(&file).unwrap(), all(&plain).unwrap(), "version {version}, method {method}");
            let padded = [&file[..], &[0; 100]].concat();
            assert_eq!(all(&padded).unwrap(), all(&plain).unwrap(), "version {version}, method {method}");
        }
    }
}

#[test]
fn select_takes_the_processor_before_its_generic_target_and_settings_that_agree() {
    let ids = |targets: &[&str]| targets.iter().map(|target| format!("{TRIPLE}{target}")).collect::<Vec<_>>();
    for (agent, features, targets, wanted) in [
        ("gfx1100", OFF, vec!["gfx11-generic", "gfx1100"], Some("gfx1100")),
        ("gfx1101", OFF, vec!["gfx1100", "gfx11-generic"], Some("gfx11-generic")),
        ("gfx1101", OFF, vec!["gfx1100", "gfx12-generic"], None),
        ("gfx1030", OFF, vec!["gfx10-1-generic", "gfx10-3-generic"], Some("gfx10-3-generic")),
        ("gfx1010", OFF, vec!["gfx10-3-generic", "gfx10-1-generic"], Some("gfx10-1-generic")),
        ("gfx1201", OFF, vec!["gfx12-generic"], Some("gfx12-generic")),
        ("gfx906", ON, vec!["gfx9-generic:xnack-", "gfx9-generic:xnack+"], Some("gfx9-generic:xnack+")),
        ("gfx942", OFF, vec!["gfx9-generic", "gfx9-4-generic"], Some("gfx9-4-generic")),
        ("gfx90a", OFF, vec!["gfx9-generic", "gfx9-4-generic"], None),
        ("gfx90a", ON, vec!["gfx90a:xnack-", "gfx90a:sramecc-", "gfx90a"], Some("gfx90a")),
        (
            "gfx90a",
            ECC,
            vec!["gfx90a", "gfx90a:xnack-", "gfx90a:sramecc+:xnack-"],
            Some("gfx90a:sramecc+:xnack-"),
        ),
        ("gfx90a", OFF, vec!["gfx90a:xnack-:sramecc-"], Some("gfx90a:xnack-:sramecc-")),
        ("gfx90a", ON, vec!["gfx90a:xnack+:ecc+"], None),
    ] {
        let ids = ids(&targets);
        let file = for_targets(&ids.iter().map(String::as_str).collect::<Vec<_>>());
        let bundle = Bundle::open(&file).unwrap();
        let selected = bundle.select(target(agent), features).map(Entry::id);
        match wanted {
            Some(wanted) => assert_eq!(selected, Ok(&*format!("{TRIPLE}{wanted}")), "{agent} of {targets:?}"),
            None => assert!(matches!(selected, Err(BundleError::NoCode { .. })), "{agent} of {targets:?}"),
        }
    }
}

#[test]
fn select_knows_all_spellings_of_an_id_and_skips_what_is_no_device() {
    for (id, fits) in [
        ("hip-amdgcn-amd-amdhsa--gfx1100", true),
        ("hip-amdgcn-amd-amdhsa-gfx1100", true),
        ("openmp-amdgcn-amd-amdhsa-unknown-gfx1100", true),
        ("hipv4-amdgpu11.00-amd-amdhsa-unknown-gfx1100", true),
        ("hipv4-amdgpu11.00-amd-amdhsa--", true),
        ("hipv4-amdgpu11-amd-amdhsa--", true),
        ("hipv4-amdgpu11.01-amd-amdhsa--gfx1100", false),
        ("hipv4-amdgpu12-amd-amdhsa--", false),
        ("hip-amdgcn-amd-amdhsa-gfx11-generic", true),
        ("host-amdgcn-amd-amdhsa--gfx1100", false),
        ("host-x86_64-unknown-linux-gnu-", false),
        ("hip-spirv64-amd-amdhsa--amdgcnspirv", false),
        ("cuda-nvptx64-nvidia-cuda--sm_70", false),
        ("hip-amdgcn-amd-amdpal--gfx1100", false),
        ("hip-amdgcn-amd-amdhsa--", false),
        ("gfx1100", false),
        ("-", false),
    ] {
        let file = for_targets(&[id]);
        let bundle = Bundle::open(&file).unwrap();
        assert_eq!(bundle.select(target("gfx1100"), OFF).is_ok(), fits, "{id}");
    }
    let exact = for_targets(&["hip-amdgpu11-amd-amdhsa--", "hip-amdgpu11.00-amd-amdhsa--"]);
    let bundle = Bundle::open(&exact).unwrap();
    assert_eq!(bundle.select(target("gfx1100"), OFF).unwrap().id(), "hip-amdgpu11.00-amd-amdhsa--");
    // What has no code is not selected: a generic target's code runs.
    let empty = super::tests::bundle(&[
        ("hip-amdgcn-amd-amdhsa--gfx1100", b""),
        ("hip-amdgcn-amd-amdhsa--gfx11-generic", b"x"),
    ]);
    let bundle = Bundle::open(&empty).unwrap();
    assert!(bundle.select(target("gfx1100"), OFF).unwrap().id().ends_with("gfx11-generic"));
    let host = for_targets(&["host-x86_64-unknown-linux-gnu-"]);
    let none = Bundle::open(&host).unwrap().first_device().unwrap_err();
    assert_eq!(none, BundleError::NoDevice { found: vec!["host-x86_64-unknown-linux-gnu-".to_owned()] });
}

#[test]
fn headers_with_impossible_numbers_are_refused_by_name() {
    assert!(matches!(
        error(&header(u64::MAX, &[], b"")),
        BundleError::Entries { found: u64::MAX, limit: MAX_ENTRIES }
    ));
    assert!(matches!(
        error(&header(MAX_ENTRIES, &[], b"")),
        BundleError::Truncated { what: "an entry's offset", wanted: 8, at: 32, bytes: 32 }
    ));
    assert!(matches!(
        error(&header(1, &[(0, 0, u64::MAX, b"")], b"")),
        BundleError::IdBytes { index: 0, found: u64::MAX, .. }
    ));
    assert!(matches!(
        error(&header(1, &[(0, 0, 5, b"abc")], b"")),
        BundleError::Truncated { what: "an entry's id", wanted: 5, bytes: 59, .. }
    ));
    for (offset, size) in [(u64::MAX, 1), (1, u64::MAX), (u64::MAX, u64::MAX), (0, 61), (60, 1)] {
        let outside = error(&header(1, &[(offset, size, 4, b"id-x")], b""));
        assert!(matches!(outside, BundleError::EntryRange { bytes: 60, .. }), "{outside}");
    }
    for id in [b"".as_slice(), b"a b", b"a\n", b"\xff\xfe", "é".as_bytes()] {
        let text = error(&header(1, &[(0, 0, id.len() as u64, id)], b""));
        assert!(matches!(&text, BundleError::IdText { index: 0, id: found } if found == id), "{text}");
    }
    let twice = error(&for_targets(&["hip-a", "hip-a"]));
    assert_eq!(twice, BundleError::Duplicate { id: "hip-a".to_owned() });
    let two = [PLAIN, PLAIN].concat();
    assert_eq!(error(&two), BundleError::Rest { end: PLAIN.len() as u64, bytes: PLAIN.len() as u64 });
    assert_eq!(all(&[PLAIN, &[0; 4096]].concat()), all(PLAIN));
}

#[test]
fn compressed_headers_are_checked() {
    let bytes = PLAIN.len() as u64;
    let data = deflate(PLAIN);
    assert_eq!(error(&head(4, 0, bytes, 0, &data)), BundleError::Version { found: 4 });
    assert_eq!(error(&head(0, 0, bytes, 0, &data)), BundleError::Version { found: 0 });
    assert_eq!(error(&head(2, 2, bytes, 0, &data)), BundleError::Method { found: 2 });
    assert!(matches!(
        error(&head(3, 0, u64::MAX, 0, &data)),
        BundleError::TooLarge { what: "offload bundle", bytes: u64::MAX, limit: MAX_BUNDLE_BYTES }
    ));
    let good = head(2, 0, bytes, hash(PLAIN), &data);
    assert_eq!(all(&good), all(PLAIN));
    let mut long = good.clone();
    long[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    let found = good.len() as u64;
    assert_eq!(error(&long), BundleError::FileBytes { declared: u32::MAX.into(), header: 24, found });
    let mut short = good.clone();
    short[8..12].copy_from_slice(&23u32.to_le_bytes());
    assert_eq!(error(&short), BundleError::FileBytes { declared: 23, header: 24, found });
    let two = [&good[..], &good].concat();
    assert_eq!(error(&two), BundleError::Rest { end: found, bytes: found });
    // A compressed bundle within one is none.
    let data = deflate(&good);
    assert!(matches!(error(&head(2, 0, found, hash(&good), &data)), BundleError::NotBundle { .. }));
}

#[test]
fn decompressed_bytes_have_the_length_and_the_hash_of_the_header() {
    let (bytes, sum) = (PLAIN.len() as u64, hash(PLAIN));
    for (method, data) in both(PLAIN).iter().enumerate() {
        let method = method as u16;
        for declared in [bytes - 1, bytes + 1] {
            let wrong = all(&head(2, method, declared, sum, data)).unwrap_err();
            let is_named = match wrong {
                BundleError::Length { declared: found, .. } => found == declared,
                // The last entry ends at the bundle's end.
                BundleError::EntryRange { bytes, .. } => bytes == declared && declared < PLAIN.len() as u64,
                _ => false,
            };
            assert!(is_named, "{wrong}");
        }
        let wrong = all(&head(2, method, bytes, sum ^ 1, data)).unwrap_err();
        assert_eq!(wrong, BundleError::Hash { declared: sum ^ 1, found: sum });
        let cut = all(&head(2, method, bytes, sum, &data[..data.len() - 8])).unwrap_err();
        assert!(matches!(cut, BundleError::Decompress { .. } | BundleError::Length { .. }), "{cut}");
    }
}

#[test]
fn bytes_beyond_the_declared_ones_are_not_decompressed() {
    // 32 MiB of zeros behind a bundle that says that it has a few bytes.
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), Compression::fast());
    let start = for_targets(&["hip-amdgcn-amd-amdhsa--gfx1100"]);
    encoder.write_all(&start).unwrap();
    for _ in 0..32 {
        encoder.write_all(&vec![0; 1 << 20]).unwrap();
    }
    let data = encoder.finish().unwrap();
    let BundleError::Length { declared, found } = all(&head(2, 0, start.len() as u64, 0, &data)).unwrap_err()
    else {
        panic!("it has more")
    };
    assert!(declared == start.len() as u64 && found <= 64 << 10, "{found}");
    // An entry that fills the memory is not kept.
    let header = header(1, &[(0, MAX_ENTRY_BYTES + 1, 30, b"hip-amdgcn-amd-amdhsa--gfx1100")], b"");
    let file = head(3, 0, MAX_BUNDLE_BYTES, 0, &deflate(&header));
    let large = all(&file).unwrap_err();
    assert!(matches!(large, BundleError::TooLarge { what: "entry", .. }), "{large}");
}

#[test]
fn truncated_bundles_are_refused_wherever_they_end() {
    for length in 0..PLAIN.len() {
        assert!(all(&PLAIN[..length]).is_err(), "{length}");
    }
    for length in 0..ZSTD.len() {
        assert!(all(&ZSTD[..length]).is_err(), "{length}");
    }
    let data = deflate(PLAIN);
    let first = head(1, 0, PLAIN.len() as u64, hash(PLAIN), &data);
    for length in 0..first.len() {
        // The last bytes are zlib's own checksum, which adds nothing to the hash.
        assert!(all(&first[..length]).is_err() || length >= first.len() - 4, "{length}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn damaged_bundles_never_panic_and_compressed_ones_give_nothing_else(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        words in prop::collection::vec((0usize..400, prop::sample::select(vec![
            0_u64, 1, 0x7fff_ffff, 0xffff_ffff, 1 << 32, i64::MAX as u64, u64::MAX, u64::MAX - 23,
        ])), 0..3),
        is_compressed in any::<bool>(),
    ) {
        let mut file = if is_compressed { ZSTD } else { PLAIN }.to_vec();
        for (place, value) in changes {
            let at = place.index(file.len());
            file[at] = value;
        }
        for (at, value) in words {
            file[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        match all(&file) {
            Ok(found) if is_compressed => prop_assert_eq!(found, all(PLAIN).unwrap()),
            Ok(_) => {}
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
        let _ = code_for(&file, target("gfx1100"), OFF);
    }

    #[test]
    fn random_bytes_behind_a_magic_never_panic(tail in prop::collection::vec(any::<u8>(), 0..400), is_compressed in any::<bool>()) {
        let file = [if is_compressed { b"CCOB\x02\0\x01\0" } else { MAGIC }, &tail].concat();
        let _ = all(&file);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn bundles_of_any_entries_are_read_as_they_were_made(
        entries in prop::collection::btree_map("[a-z0-9:+_.-]{1,60}", prop::collection::vec(any::<u8>(), 0..300), 0..12),
        version in 1u16..=3,
    ) {
        let made: Vec<(&str, &[u8])> = entries.iter().map(|(id, code)| (&**id, &**code)).collect();
        let file = bundle(&made);
        let found = all(&file).unwrap();
        prop_assert!(found.iter().map(|(id, code)| (&**id, &**code)).eq(made.iter().copied()));
        for (method, data) in both(&file).iter().enumerate() {
            let packed = head(version, method as u16, file.len() as u64, hash(&file), data);
            prop_assert_eq!(&all(&packed).unwrap(), &found);
        }
    }
}
