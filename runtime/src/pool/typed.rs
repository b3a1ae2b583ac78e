// SPDX-License-Identifier: MIT OR Apache-2.0
//! Buffers of elements of one type: lengths and places are counted in elements.
//!
//! INVARIANT: a typed buffer has at least one element, its elements have at least one byte, and its [`Buffer`] has exactly
//! the elements' bytes.

use std::fmt;
use std::marker::PhantomData;

use bytemuck::Pod;

use crate::context::error::{AllocError, CopyError, FreeError, UploadError};
use crate::pool::{Buffer, Pool};

/// A buffer of elements of type `T`, which have the layout that a kernel sees. Clones name the same one, as those of a
/// [`Buffer`].
///
/// The memory is that of the [`Buffer`] inside, which the runtime's registry knows: a checkpoint saves it and a restore
/// puts it back at its address, as it does with every buffer. The type is not saved, it is the program's own.
///
/// ```no_run
/// # let agent = stasis::Runtime::open_default()?.agent(0).ok_or("no agent")?;
/// let ones = agent.vram().upload(&[1.0f32; 1024])?;
/// ones.write(1023, &[2.0])?;
/// assert_eq!(ones.download()?.iter().sum::<f32>(), 1025.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TypedBuffer<T> {
    buffer: Buffer,
    len: usize,
    /// It makes elements of bytes and holds none: any thread may have it.
    element: PhantomData<fn() -> T>,
}

impl<T> Clone for TypedBuffer<T> {
    fn clone(&self) -> Self {
        TypedBuffer { buffer: self.buffer.clone(), len: self.len, element: PhantomData }
    }
}

impl<T> fmt::Debug for TypedBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TypedBuffer({}, [{}; {}])", self.buffer.key(), std::any::type_name::<T>(), self.len)
    }
}

impl Pool {
    /// Allocates a buffer of `len` elements, zeroed or with what a buffer before it left: every byte of an element may have
    /// any value.
    ///
    /// # Errors
    /// [`AllocError::Elements`] if the elements' bytes cannot be counted in 64 bits, otherwise as for [`Pool::alloc`]:
    /// [`AllocError::Empty`] for no elements, and for elements without bytes.
    pub fn alloc_elements<T: Pod>(&self, len: usize) -> Result<TypedBuffer<T>, AllocError> {
        let element_bytes = size_of::<T>() as u64;
        let too_many = || AllocError::Elements { elements: len as u64, element_bytes };
        let bytes = (len as u64).checked_mul(element_bytes).ok_or_else(too_many)?;
        Ok(TypedBuffer { buffer: self.alloc(bytes)?, len, element: PhantomData })
    }

    /// Allocates a buffer for `elements` and copies them into it. Returns when they are there.
    ///
    /// # Errors
    /// [`UploadError`]; there is no buffer then.
    pub fn upload<T: Pod>(&self, elements: &[T]) -> Result<TypedBuffer<T>, UploadError> {
        let buffer = self.alloc_elements(elements.len())?;
        buffer.write(0, elements)?;
        Ok(buffer)
    }
}

impl<T> TypedBuffer<T> {
    /// Its length in elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: a typed buffer has at least one element.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// It as bytes, for [`crate::Arg::Buffer`], spans, copies and sharing.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Its address, for the CPU and every agent it is mapped to.
    pub fn va(&self) -> u64 {
        self.buffer.va()
    }

    /// Gives its memory back, as [`Buffer::free`].
    ///
    /// # Errors
    /// As for [`Buffer::free`].
    pub fn free(&self) -> Result<(), FreeError> {
        self.buffer.free()
    }
}

impl<T: Pod> TypedBuffer<T> {
    /// Copies `from` into it, from element `at` on, wherever its memory is ([`Buffer::upload`]). Returns when it is done.
    /// Not ordered with packets in flight: wait for those that touch these elements.
    ///
    /// # Errors
    /// [`CopyError::Elements`] if they do not fit, otherwise as for [`Buffer::upload`].
    pub fn write(&self, at: usize, from: &[T]) -> Result<(), CopyError> {
        let offset = self.offset(at, from.len())?;
        self.buffer.upload(offset, bytemuck::cast_slice(from))
    }

    /// Copies from it, from element `at` on, into `to` ([`Buffer::download`]). See [`TypedBuffer::write`] about order.
    ///
    /// # Errors
    /// As for [`TypedBuffer::write`].
    pub fn read(&self, at: usize, to: &mut [T]) -> Result<(), CopyError> {
        let offset = self.offset(at, to.len())?;
        self.buffer.download(offset, bytemuck::cast_slice_mut(to))
    }

    /// All its elements. See [`TypedBuffer::write`] about order.
    ///
    /// # Errors
    /// As for [`Buffer::download`].
    pub fn download(&self) -> Result<Vec<T>, CopyError> {
        let mut elements = vec![T::zeroed(); self.len];
        self.read(0, &mut elements)?;
        Ok(elements)
    }

    /// Where element `at` begins, in bytes, if `count` elements from there on are in the buffer.
    fn offset(&self, at: usize, count: usize) -> Result<u64, CopyError> {
        if at.checked_add(count).is_none_or(|end| end > self.len) {
            let (at, count, len) = (at as u64, count as u64, self.len as u64);
            return Err(CopyError::Elements { key: self.buffer.key(), at, count, len });
        }
        // At most the buffer's bytes, which were counted when it was allocated.
        Ok(at as u64 * size_of::<T>() as u64)
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::runtime;
    use crate::*;

    #[derive(Clone, Copy, Debug, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
    #[repr(C)]
    struct Particle {
        place: [f32; 3],
        kind: u32,
    }

    #[test]
    fn upload_makes_a_buffer_that_downloads_as_it_was() {
        let (runtime, _) = runtime(1);
        let particle = |n: u16| Particle { place: [f32::from(n), 0.5, -1.0], kind: n.into() };
        let particles: Vec<_> = (0..1000).map(particle).collect();
        let buffer = runtime.agent(0).unwrap().vram().upload(&particles).unwrap();
        assert_eq!((buffer.len(), buffer.is_empty(), buffer.buffer().len()), (1000, false, 16_000));
        assert_eq!(buffer.va(), buffer.buffer().va());
        assert_eq!(buffer.download().unwrap(), particles);
        buffer.write(998, &[particle(1), particle(2)]).unwrap();
        let mut back = [particle(0); 3];
        buffer.read(997, &mut back).unwrap();
        assert_eq!(back, [particle(997), particle(1), particle(2)]);
    }

    #[test]
    fn elements_out_of_range_are_named_and_change_nothing() {
        let (runtime, _) = runtime(1);
        let buffer = runtime.gtt().upload(&[7u16; 10]).unwrap();
        for (at, count) in [(9, 2), (10, 1), (11, 0), (usize::MAX, 1), (usize::MAX, 2), (0, 11)] {
            let from = vec![1u16; count];
            let error = buffer.write(at, &from).unwrap_err();
            let CopyError::Elements { at: found, count: n, len: 10, .. } = error else { panic!("{error}") };
            assert_eq!((found, n), (at as u64, count as u64));
            let error = buffer.read(at, &mut vec![0; count]).unwrap_err();
            let wanted = format!(
                "Elements {at}..{at}+{count} are outside buffer {} of 10 elements",
                buffer.buffer().key()
            );
            assert_eq!(error.to_string(), wanted);
        }
        assert_eq!(buffer.download().unwrap(), [7; 10]);
        buffer.write(10, &[]).unwrap();
        buffer.read(0, &mut []).unwrap();
    }

    #[test]
    fn no_elements_and_too_many_cannot_be_allocated() {
        let (runtime, kernel) = runtime(1);
        let (pool, before) = (runtime.gtt(), kernel.counts());
        assert!(matches!(pool.alloc_elements::<u64>(0), Err(AllocError::Empty)));
        assert!(matches!(pool.alloc_elements::<()>(5), Err(AllocError::Empty)));
        assert!(matches!(pool.upload::<u64>(&[]), Err(UploadError::Alloc(AllocError::Empty))));
        let error = pool.alloc_elements::<u64>(usize::MAX / 8 + 1).unwrap_err();
        assert_eq!(
            error.to_string(),
            "A buffer of 2305843009213693952 elements of 8 bytes is larger than 64 bits can count"
        );
        assert!(matches!(pool.alloc_elements::<u64>(usize::MAX / 8), Err(AllocError::Address(_))));
        assert_eq!(kernel.counts(), before);
    }

    #[test]
    fn clones_name_one_buffer_and_free_ends_all() {
        let (runtime, kernel) = runtime(1);
        let before = kernel.counts().0;
        let buffer = runtime.gtt().upload(&[1i64, -2]).unwrap();
        let other = buffer.clone();
        other.write(0, &[5]).unwrap();
        assert_eq!(buffer.download().unwrap(), [5, -2]);
        assert!(format!("{buffer:?}").ends_with("[i64; 2])"), "{buffer:?}");
        buffer.free().unwrap();
        assert!(matches!(other.free(), Err(FreeError::Stale { .. })));
        assert!(matches!(other.download(), Err(CopyError::Freed { .. })));
        assert_eq!(kernel.counts().0, before);
    }

    #[test]
    fn argument_made_of_it_is_the_buffers() {
        let (runtime, _) = runtime(1);
        let buffer = runtime.gtt().upload(&[0u8; 3]).unwrap();
        assert!(matches!(Arg::from(&buffer), Arg::Buffer(same) if same.key() == buffer.buffer().key()));
        assert!(matches!(Arg::from(buffer.buffer()), Arg::Buffer(_)));
        assert!(matches!(Arg::from(buffer.buffer().span(1, 2)), Arg::Span(_)));
    }
}
