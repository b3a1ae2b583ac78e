// SPDX-License-Identifier: MIT OR Apache-2.0
//! Images that were made upon a parent hold what they were made of, whatever becomes of the parent, and are refused when a file is
//! missing that they have contents in, or is another.

use super::super::format::{CONTENTS_OFFSET, MAX_EARLIER};
use super::*;

/// Buffers of all sizes, some with the same bytes.
fn buffers() -> Vec<Memory> {
    let mut memories = sample();
    memories.extend((0..60).map(|n| Memory::of(&noise(1 + n % 7 * 900, (n % 50) as u64))));
    memories
}

fn change(memory: &mut Memory, place: usize) {
    let place = memory.start + place;
    memory.store[place] = memory.store[place].wrapping_add(1);
}

fn upon(parent: &Path, path: &Path, memories: &mut [Memory]) -> Finished {
    write(ImageWriter::create_upon(path, &Image::open(parent).unwrap(), 64).unwrap(), memories)
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A parent, removed after an image was made upon it, of which two buffers changed. The image's directory and name.
fn child() -> (tempfile::TempDir, PathBuf, Vec<Memory>) {
    child_of(buffers(), [0, 2])
}

/// The same of other buffers, of which these changed.
fn child_of(mut memories: Vec<Memory>, changed: [usize; 2]) -> (tempfile::TempDir, PathBuf, Vec<Memory>) {
    let directory = tempfile::tempdir().unwrap();
    let [one, two] = ["one", "two"].map(|name| directory.path().join(name));
    fs::create_dir(&one).unwrap();
    fs::create_dir(&two).unwrap();
    write(ImageWriter::create(&one.join("x.img")).unwrap(), &mut memories);
    changed.into_iter().for_each(|buffer| change(&mut memories[buffer], 17));
    upon(&one.join("x.img"), &two.join("x.img"), &mut memories);
    fs::remove_dir_all(one).unwrap();
    (directory, two.join("x.img"), memories)
}

#[test]
fn what_the_parent_has_is_not_written_again_and_outlives_the_parent() {
    let (_directory, path, memories) = child();
    let image = Image::open(&path).unwrap();
    assert_holds(&image, &memories);
    let [earlier] = image.earlier() else { panic!("{:?}", image.earlier()) };
    assert_eq!(names(path.parent().unwrap()), ["x.img".to_owned(), earlier.name.clone()]);
    let [own, of_parent] = image.bytes_by_file()[..] else { panic!() };
    assert_eq!(own, CHUNK_BYTES + 100, "the first chunk of one buffer, and another buffer");
    assert!(of_parent > CHUNK_BYTES, "{of_parent}");
    // All of it, and none of it.
    let directory = path.parent().unwrap();
    let mut same = memories;
    let stats = upon(&path, &directory.join("same.img"), &mut same).stats;
    assert_eq!((stats.stored_bytes, stats.unchanged_bytes), (0, own + of_parent));
    assert_holds(&Image::open(&directory.join("same.img")).unwrap(), &same);
    let mut other = vec![Memory::of(&noise(5000, 12_345))];
    let stats = upon(&path, &directory.join("other.img"), &mut other).stats;
    assert_eq!((stats.stored_bytes, stats.unchanged_bytes), (5000, 0));
    let image = Image::open(&directory.join("other.img")).unwrap();
    assert_eq!(image.earlier(), []);
    assert_holds(&image, &other);
}

#[test]
fn what_is_known_is_not_read_and_what_the_parent_has_not_is() {
    let directory = tempfile::tempdir().unwrap();
    let [first, second, third] =
        ["first.img", "second.img", "third.img"].map(|name| directory.path().join(name));
    let mut memories =
        vec![Memory::of(&noise(3 * CHUNK_BYTES as usize + 100, 1)), Memory::of(&noise(5000, 2))];
    memories.push(Memory::of(&vec![0; CHUNK_BYTES as usize + 7]));
    write(ImageWriter::create(&first).unwrap(), &mut memories);
    let parent = Image::open(&first).unwrap();
    let lengths = || [3 * CHUNK_BYTES + 100, 5000, CHUNK_BYTES + 7].into_iter();
    let mut known = parent.known(lengths());
    let hashes: Vec<usize> =
        known.iter().map(|of| of.iter().filter(|it| matches!(it, KnownChunk::Hash(_))).count()).collect();
    assert_eq!((hashes, &known[2][..]), (vec![4, 1, 0], &[KnownChunk::Zero; 2][..]));
    let writer = |path: &Path, known: &[Vec<KnownChunk>]| {
        ImageWriter::create_upon(path, &parent, 64).unwrap().knowing(known.to_vec())
    };
    let mut expected: Vec<Memory> = memories.iter().map(|memory| Memory::of(memory.get())).collect();
    // Whatever the buffers hold now: nothing of them is read.
    memories.iter_mut().for_each(|memory| change(memory, 20));
    let stats = write(writer(&second, &known), &mut memories).stats;
    assert_eq!((stats.stored_bytes, stats.unread_bytes), (0, lengths().sum::<u64>()));
    // What is not known, or has a hash that the parent has not, is.
    known[0][1] = KnownChunk::Unknown;
    known[1][0] = KnownChunk::Hash([7; 32]);
    known[2].clear();
    let stats = write(writer(&third, &known), &mut memories).stats;
    assert_eq!(stats.unread_bytes, 2 * CHUNK_BYTES + 100);
    assert_holds(&Image::open(&second).unwrap(), &expected);
    // The first chunk of the first buffer was not.
    for buffer in [1, 2] {
        expected[buffer] = Memory::of(memories[buffer].get());
    }
    assert_holds(&Image::open(&third).unwrap(), &expected);
}

#[test]
fn copy_is_whole_by_itself_and_of_right_contents_only() {
    let (_directory, path, memories) = child();
    let image = Image::open(&path).unwrap();
    let whole = path.with_file_name("whole.img");
    let stats = image.copy_to(&whole, &Limit::none()).unwrap();
    assert_eq!((stats.stored_bytes, stats.unchanged_bytes), (image.bytes_by_file().iter().sum(), 0));
    let earlier = path.with_file_name(&image.earlier()[0].name);
    let chunk = *image.chunks().iter().find(|chunk| chunk.file == 1).unwrap();
    let mut bytes = fs::read(&earlier).unwrap();
    bytes[chunk.file_offset as usize] ^= 1;
    fs::remove_file(&path).unwrap();
    fs::write(&earlier, bytes).unwrap();
    let copied = Image::open(&whole).unwrap();
    assert_eq!(copied.earlier(), []);
    assert_holds(&copied, &memories);
    // What is damaged is not made whole.
    let again = path.with_file_name("again.img");
    let error = image.copy_to(&again, &Limit::none()).unwrap_err();
    assert!(matches!(error, ImageError::Corrupt { .. }), "{error}");
    assert!(!names(path.parent().unwrap()).iter().any(|name| name.starts_with("again")));
}

#[test]
fn many_generations_have_few_files() {
    let directory = tempfile::tempdir().unwrap();
    let mut memories: Vec<_> = (0..40).map(|n| Memory::of(&noise(9000, n))).collect();
    let at = |generation: usize| directory.path().join(format!("{generation}")).join("x.img");
    fs::create_dir(at(0).parent().unwrap()).unwrap();
    write(ImageWriter::create(&at(0)).unwrap(), &mut memories);
    let mut stored = 0;
    for generation in 1..40 {
        fs::create_dir(at(generation).parent().unwrap()).unwrap();
        change(&mut memories[generation], generation);
        let finished = upon(&at(generation - 1), &at(generation), &mut memories);
        assert_eq!(finished.stats.stored_bytes + finished.stats.unchanged_bytes, 40 * 9000);
        fs::remove_dir_all(at(generation - 1).parent().unwrap()).unwrap();
        let image = Image::open(&at(generation)).unwrap();
        assert!(image.earlier().len() <= MAX_EARLIER);
        // None is kept for little: all of them together are not much longer than the contents.
        let kept: u64 = image.earlier().iter().map(|earlier| earlier.bytes).sum();
        assert!(kept + image.file_bytes() <= 5 * 40 * 12_288, "{generation}: {kept}");
        stored += finished.stats.stored_bytes;
        assert_holds(&image, &memories);
    }
    assert!(stored < 3 * 40 * 9000, "{stored} bytes were written for 39 changes");
    // As few as the caller wants.
    let parent = Image::open(&at(39)).unwrap();
    let path = directory.path().join("few.img");
    write(ImageWriter::create_upon(&path, &parent, 2).unwrap(), &mut memories);
    let image = Image::open(&path).unwrap();
    assert!((1..=2).contains(&image.earlier().len()));
    assert_holds(&image, &memories);
}

#[test]
fn earlier_file_that_is_missing_or_another_is_named() {
    let (_directory, path, _) = child();
    let earlier = path.with_file_name(&Image::open(&path).unwrap().earlier()[0].name);
    let bytes = fs::read(&earlier).unwrap();
    let refused = |act: &dyn Fn()| {
        act();
        let error = Image::open(&path).and_then(|image| image.verify()).unwrap_err();
        fs::remove_file(&earlier).ok();
        fs::write(&earlier, &bytes).unwrap();
        Image::open(&path).unwrap().verify().unwrap();
        error
    };
    let error = refused(&|| fs::remove_file(&earlier).unwrap());
    assert!(matches!(&error, ImageError::Earlier { earlier: named, .. } if *named == earlier), "{error}");
    let error = refused(&|| fs::write(&earlier, &bytes[..bytes.len() - 1]).unwrap());
    assert!(
        matches!(&error, ImageError::OtherEarlier { earlier: named, .. } if *named == earlier),
        "{error}"
    );
    let flipped = |place: usize| {
        let mut bytes = bytes.clone();
        bytes[place] ^= 1;
        fs::write(&earlier, bytes).unwrap();
    };
    for place in [0, 40, 80, CONTENTS_OFFSET as usize - 1] {
        let error = refused(&|| flipped(place));
        let is_named = matches!(&error, ImageError::OtherEarlier { earlier: named, .. } if *named == earlier);
        assert!(is_named, "{error}");
    }
    // A byte of contents that the image has there.
    let chunk = *Image::open(&path).unwrap().chunks().iter().find(|chunk| chunk.file == 1).unwrap();
    let error = refused(&|| flipped(chunk.file_offset as usize));
    let is_named = matches!(&error, ImageError::Corrupt { path: named, .. } if *named == earlier);
    assert!(is_named, "{error}");
    for planted in ["/etc/passwd", "/dev/zero"] {
        let error = refused(&|| {
            fs::remove_file(&earlier).unwrap();
            symlink(planted, &earlier).unwrap();
        });
        assert!(matches!(error, ImageError::Earlier { .. }), "{error}");
    }
}

#[test]
fn every_byte_of_an_image_with_earlier_files_is_covered() {
    let memories = (0..6).map(|n| Memory::of(&noise(100 + n as usize * 1000, n))).collect();
    let (_directory, path, _) = child_of(memories, [1, 4]);
    let whole = fs::read(&path).unwrap();
    for place in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[place] ^= 1 << (place % 8);
        fs::write(&path, &bytes).unwrap();
        let taken = Image::open(&path).and_then(|image| image.verify());
        assert!(taken.is_err(), "byte {place} is not covered");
    }
}

#[test]
fn unfinished_image_leaves_no_second_names() {
    let (_directory, path, mut memories) = child();
    let before = names(path.parent().unwrap());
    let parent = Image::open(&path).unwrap();
    let new = path.with_file_name("new.img");
    let mut writer = ImageWriter::create_upon(&new, &parent, 64).unwrap();
    writer.write_contents(&extents(&mut memories), &Limit::none()).unwrap();
    drop(writer);
    assert_eq!(names(path.parent().unwrap()), before);
    // What somebody has put there under the second name is neither followed nor replaced; another name is taken.
    let victim = path.with_file_name("victim");
    fs::write(&victim, "precious").unwrap();
    let planted = new.with_file_name(parent.earlier()[0].name.replace("x.img", "new.img"));
    symlink(&victim, &planted).unwrap();
    upon(&path, &new, &mut memories);
    assert_eq!(fs::read(&victim).unwrap(), b"precious");
    let image = Image::open(&new).unwrap();
    assert!(
        image
            .earlier()
            .iter()
            .all(|earlier| Some(earlier.name.as_str()) != planted.file_name().unwrap().to_str())
    );
    assert_holds(&image, &memories);
}

#[test]
fn image_upon_itself_and_in_turns_keeps_what_it_needs() {
    let directory = tempfile::tempdir().unwrap();
    let paths = ["a.img", "b.img"].map(|name| directory.path().join(name));
    let mut memories: Vec<_> = (0..20).map(|n| Memory::of(&noise(9000, n))).collect();
    write(ImageWriter::create(&paths[0]).unwrap(), &mut memories);
    for generation in 0..12 {
        let (parent, path) = (&paths[0], &paths[usize::from(generation % 3 == 2)]);
        change(&mut memories[generation], 7);
        // One that fails takes nothing from those that are there.
        let mut writer = ImageWriter::create_upon(path, &Image::open(parent).unwrap(), 64).unwrap();
        writer.write_contents(&extents(&mut memories), &Limit::none()).unwrap();
        drop(writer);
        Image::open(parent).unwrap().verify().unwrap();
        upon(parent, path, &mut memories);
        assert_holds(&Image::open(path).unwrap(), &memories);
        Image::open(parent).unwrap().verify().unwrap();
        if generation % 3 == 2 {
            upon(path, parent, &mut memories);
            Image::open(path).unwrap().verify().unwrap();
        }
    }
    // Names that neither image needs are gone.
    let needed: usize = paths.iter().map(|path| 1 + Image::open(path).unwrap().earlier().len()).sum();
    assert_eq!(names(directory.path()).len(), needed);
}

#[test]
fn parent_on_another_file_system_is_refused_before_anything_is_written() {
    let parent = Image::of_file(in_memory(&mut buffers()), Path::new("memory")).unwrap();
    let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let error = ImageWriter::create_upon(&directory.path().join("x.img"), &parent, 64).unwrap_err();
    assert!(matches!(error, ImageError::Elsewhere { .. }), "{error}");
    assert_eq!(names(directory.path()), Vec::<String>::new());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(32) })]
    #[test]
    fn any_changes_come_back(
        steps in prop::collection::vec(
            prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..12), 1..6,
        ),
        dropped in any::<prop::sample::Index>(),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let mut memories: Vec<_> =
            (0..30).map(|n| Memory::new(&noise(1 + n * 611 % 9000, n as u64 % 20), n % 3)).collect();
        let mut path = directory.path().join("0.img");
        write(ImageWriter::create(&path).unwrap(), &mut memories);
        for (generation, changes) in steps.into_iter().enumerate() {
            for (buffer, place) in changes {
                let memory = &mut memories[buffer.index(30)];
                let place = place.index(memory.bytes);
                change(memory, place);
            }
            // Extents have no names: others may follow them.
            let moved = memories.remove(dropped.index(30));
            memories.push(moved);
            let next = directory.path().join(format!("{}.img", generation + 1));
            upon(&path, &next, &mut memories);
            path = next;
            assert_holds(&Image::open(&path).unwrap(), &memories);
        }
    }
}
