// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ELF container: header checks, loadable segments, the dynamic section's tables, the metadata note.
//!
//! INVARIANT: only program headers and the dynamic section are relied on, as by every loader; section headers
//! may be stripped, and serve only to find kernels whose visibility is hidden.

use super::error::CodeObjectError;
use object::LittleEndian;
use object::elf;
use object::read::elf::FileHeader;
use object::read::elf::HashTable;
use object::read::elf::ProgramHeader;
use object::read::elf::Sym;
use std::collections::BTreeMap;

type Header = elf::FileHeader64<LittleEndian>;
const LE: LittleEndian = LittleEndian;

const OSABI_AMDGPU_HSA: u8 = 64;
const NOTE_METADATA: u32 = 32;
const SYMBOL_BYTES: u64 = 24;
const RELA_BYTES: u64 = 24;

/// A loadable segment's place in the file and in memory.
#[derive(Debug, Clone)]
pub(super) struct Load<'data> {
    pub address: u64,
    pub memory: u64,
    pub align: u64,
    pub flags: u32,
    pub bytes: &'data [u8],
}

impl Load<'_> {
    /// The file's bytes from `address` to the segment's end in the file.
    fn from(&self, address: u64) -> Option<&[u8]> {
        let start = usize::try_from(address.checked_sub(self.address)?).ok()?;
        self.bytes.get(start..)
    }
}

/// A symbol that has a place in the image.
#[derive(Debug, Clone, Copy)]
pub(super) struct Symbol {
    pub value: u64,
    pub size: u64,
    pub object: bool,
    pub exported: bool,
}

/// What a relocation refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Referent {
    Image,
    Defined(u64),
    Undefined { name: String, weak: bool },
}

/// One entry of a RELA table.
#[derive(Debug, Clone)]
pub(super) struct Rela {
    pub offset: u64,
    pub kind: u32,
    pub referent: Referent,
    pub addend: i64,
}

/// A file whose header is that of an AMD GPU code object.
#[derive(Debug)]
pub(super) struct Elf<'data> {
    data: &'data [u8],
    header: &'data Header,
    programs: &'data [elf::ProgramHeader64<LittleEndian>],
}

impl<'data> Elf<'data> {
    pub fn open(data: &'data [u8]) -> Result<Self, CodeObjectError> {
        let start = data.get(..4).unwrap_or(data);
        if start != elf::ELFMAG {
            return Err(CodeObjectError::NotElf { bytes: data.len(), start: start.to_vec() });
        }
        // The class decides how the rest is laid out, so it is looked at before the header is read.
        // What is cut off is not foreign; the header says so.
        let ident = |index: usize, field, wanted: u8| {
            data.get(index).map_or(Ok(()), |&found| foreign(field, found.into(), wanted.into()))
        };
        ident(4, "EI_CLASS", elf::ELFCLASS64)?;
        ident(5, "EI_DATA", elf::ELFDATA2LSB)?;
        let header = Header::parse(data).map_err(|source| unreadable(data, "the ELF header", source))?;
        foreign("e_machine", header.e_machine.get(LE).into(), elf::EM_AMDGPU.into())?;
        foreign("EI_OSABI", header.e_ident.os_abi.into(), OSABI_AMDGPU_HSA.into())?;
        let kind = header.e_type.get(LE);
        if kind != elf::ET_DYN {
            return Err(CodeObjectError::NotLinked { found: kind });
        }
        let programs = header
            .program_headers(LE, data)
            .map_err(|source| unreadable(data, "the program header table", source))?;
        // Nothing here needs the sections, but their table is what a file that was cut off lacks first.
        let sections = header.section_headers(LE, data);
        sections.map_err(|source| unreadable(data, "the section header table", source))?;
        Ok(Self { data, header, programs })
    }

    pub fn abi_version(&self) -> u8 {
        self.header.e_ident.abi_version
    }

    pub fn flags(&self) -> u32 {
        self.header.e_flags.get(LE)
    }

    fn unreadable(&self, what: &'static str, source: object::read::Error) -> CodeObjectError {
        unreadable(self.data, what, source)
    }

    /// The loadable segments in ascending order, without overlaps.
    pub fn segments(&self) -> Result<Vec<Load<'data>>, CodeObjectError> {
        let mut loads: Vec<Load<'data>> = Vec::new();
        for program in self.programs.iter().filter(|program| program.p_type(LE) == elf::PT_LOAD) {
            let (address, memory) = (program.p_vaddr(LE), program.p_memsz(LE));
            let index = loads.len();
            let invalid =
                |why| CodeObjectError::Segment { index, why, address, file: program.p_filesz(LE), memory };
            let Ok(bytes) = program.data(LE, self.data) else {
                return Err(invalid("its bytes lie outside the file"));
            };
            if memory < program.p_filesz(LE) {
                return Err(invalid("smaller in memory than in the file"));
            }
            if address.checked_add(memory).is_none() {
                return Err(invalid("it wraps around the address space"));
            }
            let align = program.p_align(LE).max(1);
            if !align.is_power_of_two() || align > super::loader::MAX_ALIGNMENT {
                return Err(invalid("its alignment is no power of two up to 2 MiB"));
            }
            if loads.last().is_some_and(|last| last.address + last.memory > address) {
                return Err(invalid("it overlaps or precedes the one before"));
            }
            loads.push(Load { address, memory, align, flags: program.p_flags(LE), bytes });
        }
        if loads.iter().all(|load| load.memory == 0) {
            return Err(CodeObjectError::NoSegments);
        }
        Ok(loads)
    }

    /// The metadata notes; a file linked from several objects has one of each.
    pub fn metadata_notes(&self) -> Result<Vec<&'data [u8]>, CodeObjectError> {
        let mut found = Vec::new();
        for program in self.programs {
            let notes =
                program.notes(LE, self.data).map_err(|source| self.unreadable("a note segment", source))?;
            let Some(mut notes) = notes else { continue };
            while let Some(note) = notes.next().map_err(|source| self.unreadable("a note", source))? {
                if note.n_type(LE) == NOTE_METADATA && note.name() == b"AMDGPU" {
                    found.push(note.desc());
                }
            }
        }
        if found.is_empty() { Err(CodeObjectError::NoMetadata) } else { Ok(found) }
    }

    /// All named symbols with a place in the image: the dynamic ones, then what only the section headers know.
    pub fn symbols(&self, loads: &[Load<'_>]) -> Result<BTreeMap<String, Symbol>, CodeObjectError> {
        let mut found = BTreeMap::new();
        let table = self.dynamic(loads)?;
        for index in 1..table.symbol_count {
            let symbol = table.symbol(index)?;
            if symbol.is_undefined(LE) {
                continue;
            }
            let name = table.name(index, symbol)?;
            found.entry(name).or_insert_with(|| describe(symbol, true));
        }
        // Stripped or damaged section headers cost only the hidden kernels.
        let hidden = self
            .header
            .sections(LE, self.data)
            .and_then(|sections| sections.symbols(LE, self.data, elf::SHT_SYMTAB))
            .ok();
        for symbol in hidden.iter().flat_map(|table| table.iter().map(move |symbol| (table, symbol))) {
            let (table, symbol) = symbol;
            let Ok(name) = table.symbol_name(LE, symbol) else { continue };
            let Ok(name) = std::str::from_utf8(name) else { continue };
            if !symbol.is_undefined(LE) && !name.is_empty() && !found.contains_key(name) {
                found.insert(name.to_owned(), describe(symbol, false));
            }
        }
        Ok(found)
    }

    /// The dynamic relocations with their symbols looked up.
    pub fn relocations(&self, loads: &[Load<'_>]) -> Result<Vec<Rela>, CodeObjectError> {
        let table = self.dynamic(loads)?;
        let mut found = Vec::new();
        for entry in &table.relas {
            let index = entry.r_sym(LE, false);
            let referent = if index == 0 {
                Referent::Image
            } else {
                let symbol = table.symbol(index)?;
                if symbol.is_undefined(LE) {
                    let weak = symbol.st_bind() == elf::STB_WEAK;
                    Referent::Undefined { name: table.name(index, symbol)?, weak }
                } else {
                    Referent::Defined(symbol.st_value.get(LE))
                }
            };
            found.push(Rela {
                offset: entry.r_offset.get(LE),
                kind: entry.r_type(LE, false),
                referent,
                addend: entry.r_addend.get(LE),
            });
        }
        Ok(found)
    }

    fn dynamic<'loads>(&self, loads: &'loads [Load<'_>]) -> Result<Dynamic<'loads>, CodeObjectError> {
        let mut entries: &[elf::Dyn64<LittleEndian>] = &[];
        for program in self.programs {
            let dynamic = program
                .dynamic(LE, self.data)
                .map_err(|source| self.unreadable("the dynamic section", source))?;
            entries = dynamic.unwrap_or(entries);
        }
        Dynamic::read(entries, loads)
    }
}

fn describe(symbol: &elf::Sym64<LittleEndian>, exported: bool) -> Symbol {
    Symbol {
        value: symbol.st_value.get(LE),
        size: symbol.st_size.get(LE),
        object: symbol.st_type() == elf::STT_OBJECT,
        exported,
    }
}

fn foreign(field: &'static str, found: u32, wanted: u32) -> Result<(), CodeObjectError> {
    if found == wanted { Ok(()) } else { Err(CodeObjectError::Foreign { field, found, wanted }) }
}

fn unreadable(data: &[u8], what: &'static str, source: object::read::Error) -> CodeObjectError {
    CodeObjectError::Unreadable { what, bytes: data.len(), source }
}

/// The tables that the dynamic section points to.
struct Dynamic<'data> {
    symbols: &'data [u8],
    strings: &'data [u8],
    symbol_count: u32,
    relas: Vec<&'data elf::Rela64<LittleEndian>>,
}

impl<'data> Dynamic<'data> {
    fn read(entries: &[elf::Dyn64<LittleEndian>], loads: &'data [Load<'_>]) -> Result<Self, CodeObjectError> {
        let entries: Vec<(u64, u64)> = entries
            .iter()
            .map(|entry| (entry.d_tag.get(LE).cast_unsigned(), entry.d_val.get(LE)))
            .take_while(|(tag, _)| *tag != 0)
            .collect();
        let value = |wanted: Tag| entries.iter().find(|(tag, _)| *tag == wanted.number).map(|(_, val)| *val);
        let bytes = |tag: Tag, length: Option<u64>| -> Result<&'data [u8], CodeObjectError> {
            let Some(address) = value(tag) else { return Ok(&[]) };
            slice(loads, address, length).ok_or(CodeObjectError::Dynamic { tag: tag.name, value: address })
        };
        for (tag, expected) in [(SYMENT, SYMBOL_BYTES), (RELAENT, RELA_BYTES), (PLTREL, RELA.number)] {
            if let Some(found) = value(tag).filter(|found| *found != expected) {
                return Err(CodeObjectError::Dynamic { tag: tag.name, value: found });
            }
        }
        // AMD GPU linkers emit RELA only; applying half of the relocations would be worse than none.
        for tag in [REL, RELR] {
            if let Some(found) = value(tag) {
                return Err(CodeObjectError::Dynamic { tag: tag.name, value: found });
            }
        }
        let mut relas = Vec::new();
        for (table, size) in [(RELA, RELASZ), (JMPREL, PLTRELSZ)] {
            let length = value(size).unwrap_or(0);
            let data = bytes(table, Some(length))?;
            let invalid = CodeObjectError::Dynamic { tag: size.name, value: length };
            if length % RELA_BYTES != 0 || (length > 0 && data.is_empty()) {
                return Err(invalid);
            }
            let count = data.len() / queues::words::size(RELA_BYTES);
            let (entries, _) = object::pod::slice_from_bytes::<elf::Rela64<LittleEndian>>(data, count)
                .map_err(|()| invalid)?;
            relas.extend(entries);
        }
        let symbol_count = symbol_count(bytes(HASH, None)?, bytes(GNU_HASH, None)?)?;
        Ok(Self {
            symbols: bytes(SYMTAB, None)?,
            strings: bytes(STRTAB, Some(value(STRSZ).unwrap_or(0)))?,
            symbol_count,
            relas,
        })
    }

    fn symbol(&self, index: u32) -> Result<&'data elf::Sym64<LittleEndian>, CodeObjectError> {
        let start = u64::from(index) * SYMBOL_BYTES;
        usize::try_from(start)
            .ok()
            .and_then(|start| self.symbols.get(start..))
            .and_then(|rest| object::pod::from_bytes(rest).ok())
            .map(|(symbol, _)| symbol)
            .ok_or(CodeObjectError::SymbolName { index })
    }

    fn name(&self, index: u32, symbol: &elf::Sym64<LittleEndian>) -> Result<String, CodeObjectError> {
        usize::try_from(symbol.st_name.get(LE))
            .ok()
            .and_then(|start| self.strings.get(start..))
            .and_then(|rest| rest.split(|byte| *byte == 0).next())
            .and_then(|name| std::str::from_utf8(name).ok())
            .map(str::to_owned)
            .ok_or(CodeObjectError::SymbolName { index })
    }
}

/// How many dynamic symbols there are: only the hash tables know. A file without any has none to look up.
fn symbol_count(hash: &[u8], gnu_hash: &[u8]) -> Result<u32, CodeObjectError> {
    let mut count = 0;
    if !hash.is_empty() {
        count = HashTable::<Header>::parse(LE, hash)
            .map_err(|_| CodeObjectError::Dynamic { tag: HASH.name, value: hash.len() as u64 })?
            .symbol_table_length();
    } else if !gnu_hash.is_empty() {
        count = gnu_symbol_count(gnu_hash)
            .ok_or(CodeObjectError::Dynamic { tag: GNU_HASH.name, value: gnu_hash.len() as u64 })?;
    }
    Ok(count)
}

/// The last chain's end: header (4 words), bloom filter (64-bit words), buckets, chains whose last word is odd.
fn gnu_symbol_count(table: &[u8]) -> Option<u32> {
    let word = |index: usize| -> Option<u32> {
        let bytes = table.get(index.checked_mul(4)?..)?.first_chunk()?;
        Some(u32::from_le_bytes(*bytes))
    };
    let (buckets, base, bloom) = (word(0)? as usize, word(1)?, word(2)? as usize);
    let first_bucket = 4usize.checked_add(bloom.checked_mul(2)?)?;
    let first_chain = first_bucket.checked_add(buckets)?;
    if first_chain.checked_mul(4)? > table.len() {
        return None;
    }
    let highest = (first_bucket..first_chain).filter_map(word).max().unwrap_or(0);
    if highest == 0 {
        return Some(base);
    }
    let mut index = highest;
    let mut chain = first_chain.checked_add(usize::try_from(highest.checked_sub(base)?).ok()?)?;
    while word(chain)? & 1 == 0 {
        index = index.checked_add(1)?;
        chain += 1;
    }
    index.checked_add(1)
}

/// The bytes at an address; all that the segment has in the file if no length is known.
fn slice<'data>(loads: &'data [Load<'_>], address: u64, length: Option<u64>) -> Option<&'data [u8]> {
    loads.iter().find_map(|load| {
        let rest = load.from(address)?;
        match length {
            Some(length) => rest.get(..usize::try_from(length).ok()?),
            None => Some(rest),
        }
    })
}

#[derive(Clone, Copy)]
struct Tag {
    number: u64,
    name: &'static str,
}

const PLTRELSZ: Tag = Tag { number: 2, name: "DT_PLTRELSZ" };
const HASH: Tag = Tag { number: 4, name: "DT_HASH" };
const STRTAB: Tag = Tag { number: 5, name: "DT_STRTAB" };
const SYMTAB: Tag = Tag { number: 6, name: "DT_SYMTAB" };
const RELA: Tag = Tag { number: 7, name: "DT_RELA" };
const RELASZ: Tag = Tag { number: 8, name: "DT_RELASZ" };
const RELAENT: Tag = Tag { number: 9, name: "DT_RELAENT" };
const STRSZ: Tag = Tag { number: 10, name: "DT_STRSZ" };
const SYMENT: Tag = Tag { number: 11, name: "DT_SYMENT" };
const REL: Tag = Tag { number: 17, name: "DT_REL" };
const PLTREL: Tag = Tag { number: 20, name: "DT_PLTREL" };
const JMPREL: Tag = Tag { number: 23, name: "DT_JMPREL" };
const RELR: Tag = Tag { number: 36, name: "DT_RELR" };
const GNU_HASH: Tag = Tag { number: 0x6fff_fef5, name: "DT_GNU_HASH" };
