// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can be wrong with a code object, with the arguments of a kernel and with a launch.

use super::bundle::BundleError;
use super::isa::Feature;
use thiserror::Error;

/// A file that is no usable code object, or one that does not fit the agent.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CodeObjectError {
    /// The file is an offload bundle, and a wrong one or one for other agents.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// The file does not start as an ELF file does.
    #[error("Not an ELF file: {bytes} bytes that start with {start:02x?}, wanted 7f 45 4c 46")]
    NotElf {
        /// Length of the file.
        bytes: usize,
        /// Its first bytes.
        start: Vec<u8>,
    },
    /// A structure lies outside the file, or is cut off.
    #[error("Truncated or corrupt ELF file ({bytes} bytes): {what} is unreadable")]
    Unreadable {
        /// The structure.
        what: &'static str,
        /// Length of the file.
        bytes: usize,
        /// What the ELF reader said.
        #[source]
        source: object::read::Error,
    },
    /// A header field says that the file is for something else.
    #[error("Foreign ELF file: {field} is {found:#x}, an AMD GPU code object has {wanted:#x}")]
    Foreign {
        /// The field's name in `elf.h`.
        field: &'static str,
        /// Its value.
        found: u32,
        /// What it should be.
        wanted: u32,
    },
    /// A relocatable object that was not linked.
    #[error("ELF type {found} is not a shared object (3): link the object with ld.lld -shared first")]
    NotLinked {
        /// `e_type`.
        found: u16,
    },
    /// A version of the format that is not understood.
    #[error(
        "Code object ABI version {found} (EI_ABIVERSION) is not supported, only 2, 3 and 4 \
         (code object v4, v5, v6): compile with -mcode-object-version=4, 5 or 6"
    )]
    AbiVersion {
        /// `EI_ABIVERSION`.
        found: u8,
    },
    /// A processor that this library has never heard of.
    #[error("Unknown processor {mach:#04x} in the ELF header's flags {flags:#010x}")]
    UnknownProcessor {
        /// `EF_AMDGPU_MACH`.
        mach: u32,
        /// All flags.
        flags: u32,
    },
    /// A generic target in a version of the format that has none, or without its version.
    #[error(
        "Target {name} is generic, which needs code object v6 and a generic version of at least 1, found {found}"
    )]
    GenericVersion {
        /// The target.
        name: &'static str,
        /// The version in the flags.
        found: u8,
    },
    /// Header and metadata name different targets.
    #[error("The ELF header is for {header} but the metadata for {metadata}")]
    TargetDisagreement {
        /// From `e_flags`.
        header: String,
        /// `amdhsa.target`.
        metadata: String,
    },
    /// The code is for another GPU.
    #[error("Code for {object} does not run on {agent}: compile with -mcpu={agent}")]
    WrongTarget {
        /// What the code was compiled for.
        object: String,
        /// The agent's target.
        agent: String,
    },
    /// The code was compiled for another setting of a feature.
    #[error("Code for {object} needs {feature} {wanted:?}, the agent has it {found}")]
    WrongFeature {
        /// What the code was compiled for.
        object: String,
        /// `xnack` or `sramecc`.
        feature: &'static str,
        /// The setting compiled in.
        wanted: Feature,
        /// The agent's.
        found: bool,
    },
    /// There is nothing to load.
    #[error("The file has no loadable segment")]
    NoSegments,
    /// A loadable segment does not make sense.
    #[error(
        "Loadable segment {index} is invalid ({why}): address {address:#x}, {file} bytes in the file, {memory} in memory"
    )]
    Segment {
        /// Its number among the loadable ones.
        index: usize,
        /// What is wrong.
        why: &'static str,
        /// `p_vaddr`.
        address: u64,
        /// `p_filesz`.
        file: u64,
        /// `p_memsz`.
        memory: u64,
    },
    /// The image would be unreasonably large.
    #[error("The image needs {bytes} bytes of memory, more than the limit of {limit}")]
    ImageTooLarge {
        /// From the lowest to the highest address.
        bytes: u64,
        /// [`super::MAX_IMAGE_BYTES`].
        limit: u64,
    },
    /// The dynamic section contradicts itself or uses what no AMD GPU linker emits.
    #[error("Dynamic section entry {tag} has the unusable value {value:#x}")]
    Dynamic {
        /// The tag's name.
        tag: &'static str,
        /// Its value.
        value: u64,
    },
    /// A symbol's name is unreadable.
    #[error("Symbol {index} has no readable name")]
    SymbolName {
        /// Its number in the table.
        index: u32,
    },
    /// The file has no metadata.
    #[error(
        "No AMDGPU metadata note (type 32): the file was not made by an AMD GPU compiler for code object v3 or newer"
    )]
    NoMetadata,
    /// The metadata note is not what it should be.
    #[error("The AMDGPU metadata note ({bytes} bytes) is not valid: {why}")]
    Metadata {
        /// Length of the note.
        bytes: usize,
        /// What the decoder said.
        why: String,
    },
    /// The metadata's version is not understood.
    #[error("Metadata version {major}.{minor} is not supported, only 1.1 and 1.2")]
    MetadataVersion {
        /// Major version.
        major: u32,
        /// Minor version.
        minor: u32,
    },
    /// A number in a kernel's metadata makes no sense.
    #[error("Kernel {kernel}: {field} is {found}, wanted {wanted}")]
    KernelField {
        /// The kernel.
        kernel: String,
        /// The metadata's key.
        field: &'static str,
        /// Its value.
        found: u64,
        /// What would be valid.
        wanted: &'static str,
    },
    /// An argument lies outside the kernarg segment.
    #[error(
        "Kernel {kernel}: argument {index} occupies bytes {offset}..{end} of a kernarg segment of {segment} bytes"
    )]
    ArgumentRange {
        /// The kernel.
        kernel: String,
        /// Number of the argument, hidden ones counted.
        index: usize,
        /// First byte.
        offset: u64,
        /// First byte after it.
        end: u64,
        /// Length of the segment.
        segment: u64,
    },
    /// Two kernels have the same name.
    #[error("Kernel {kernel} is described twice")]
    DuplicateKernel {
        /// The kernel.
        kernel: String,
    },
    /// A kernel has metadata but no descriptor.
    #[error(
        "Kernel {kernel}: symbol {symbol} is not defined as a 64-byte object: is the kernel's visibility hidden?"
    )]
    NoDescriptor {
        /// The kernel.
        kernel: String,
        /// The descriptor's symbol.
        symbol: String,
    },
    /// A descriptor is misplaced or its code is.
    #[error("Kernel {kernel}: its {what} at address {address:#x} is {why}")]
    Descriptor {
        /// The kernel.
        kernel: String,
        /// `descriptor` or `code`.
        what: &'static str,
        /// Address as linked.
        address: u64,
        /// What is wrong.
        why: &'static str,
    },
    /// There is no such kernel.
    #[error("No kernel {name}; the code object has: {}", known.join(", "))]
    NoSuchKernel {
        /// What was asked for.
        name: String,
        /// What there is.
        known: Vec<String>,
    },
    /// A relocation that dynamic code objects do not have.
    #[error("Relocation {index} at {offset:#x} has the unsupported type {kind}")]
    RelocationKind {
        /// Its number.
        index: usize,
        /// Where it applies.
        offset: u64,
        /// `ELF64_R_TYPE`.
        kind: u32,
    },
    /// A relocation applies outside the image.
    #[error("Relocation {index} changes {bytes} bytes at {offset:#x}, outside every segment")]
    RelocationRange {
        /// Its number.
        index: usize,
        /// Where it applies.
        offset: u64,
        /// How many bytes.
        bytes: u64,
    },
    /// A 32-bit field cannot hold the address.
    #[error("Relocation at {offset:#x}: {value:#x} does not fit in 32 bits")]
    RelocationOverflow {
        /// Where it applies.
        offset: u64,
        /// The value.
        value: u64,
    },
    /// A symbol is defined nowhere.
    #[error("Undefined symbol {name}: define it in the code object or give its address when loading")]
    UndefinedSymbol {
        /// The symbol.
        name: String,
    },
    /// The chosen address does not suit the image.
    #[error(
        "Image address {address:#x} is unusable: {bytes} bytes at an alignment of {alignment} are needed"
    )]
    ImageAddress {
        /// The address.
        address: u64,
        /// Size of the image.
        bytes: u64,
        /// What it must be a multiple of.
        alignment: u64,
    },
}

/// Arguments that do not match the kernel's metadata.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum KernargError {
    /// Too many or too few arguments.
    #[error("Kernel {kernel} takes {expected} arguments, {found} were given")]
    Count {
        /// The kernel.
        kernel: String,
        /// Explicit arguments it has.
        expected: usize,
        /// How many there were.
        found: usize,
    },
    /// An argument of another size.
    #[error("Kernel {kernel}: argument {index} ({name}) is {expected} bytes, {found} were given")]
    Size {
        /// The kernel.
        kernel: String,
        /// Number of the argument, from 0.
        index: usize,
        /// Its name, or its kind where the compiler kept no name.
        name: String,
        /// Its size in the metadata.
        expected: usize,
        /// The size given.
        found: usize,
    },
    /// A raw block of another length.
    #[error(
        "Kernel {kernel}: a raw kernarg block is {whole} bytes, or {explicit} without hidden arguments; {found} were given"
    )]
    RawLength {
        /// The kernel.
        kernel: String,
        /// Length of the segment.
        whole: usize,
        /// Length of the part that the caller fills.
        explicit: usize,
        /// Length given.
        found: usize,
    },
    /// The memory for the block is too short.
    #[error("Kernel {kernel} needs {needed} bytes of kernarg memory, {found} are there")]
    Memory {
        /// The kernel.
        kernel: String,
        /// Length of the segment.
        needed: usize,
        /// Length of the memory.
        found: usize,
    },
    /// The metadata does not list the arguments.
    #[error(
        "Kernel {kernel} takes {bytes} bytes of arguments but its metadata lists none: pass a raw kernarg block"
    )]
    Undeclared {
        /// The kernel.
        kernel: String,
        /// Length of the segment.
        bytes: usize,
    },
    /// An argument of a kind that this library does not know.
    #[error("Kernel {kernel}: argument {index} has the unknown kind {kind}: pass a raw kernarg block")]
    UnknownKind {
        /// The kernel.
        kernel: String,
        /// Number of the argument, hidden ones counted.
        index: usize,
        /// `.value_kind`.
        kind: String,
    },
    /// A hidden argument of another size than its kind has.
    #[error("Kernel {kernel}: hidden argument {kind} is {found} bytes in the metadata, wanted {expected}")]
    HiddenSize {
        /// The kernel.
        kernel: String,
        /// `.value_kind`.
        kind: &'static str,
        /// Size of the kind.
        expected: usize,
        /// Size in the metadata.
        found: usize,
    },
}

/// A launch that the kernel was not compiled for.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// A grid or workgroup without work-items.
    #[error(
        "Kernel {kernel}: dimension {dimension} has grid {grid} and workgroup {workgroup}, neither may be 0"
    )]
    Empty {
        /// The kernel.
        kernel: String,
        /// 0, 1 or 2.
        dimension: usize,
        /// Work-items of the grid there.
        grid: u32,
        /// Work-items of a workgroup there.
        workgroup: u16,
    },
    /// A workgroup larger than the kernel allows.
    #[error(
        "Kernel {kernel}: workgroup {workgroup:?} has {found} work-items, the kernel was compiled for at most {limit}"
    )]
    WorkgroupTooLarge {
        /// The kernel.
        kernel: String,
        /// The workgroup.
        workgroup: [u16; 3],
        /// Its work-items.
        found: u64,
        /// The kernel's limit.
        limit: u32,
    },
    /// A workgroup other than the one compiled in.
    #[error("Kernel {kernel}: workgroup {found:?} is not the required {required:?}")]
    WorkgroupRequired {
        /// The kernel.
        kernel: String,
        /// The workgroup.
        found: [u16; 3],
        /// What the kernel was compiled for.
        required: [u32; 3],
    },
    /// More LDS than a workgroup can have.
    #[error("Kernel {kernel}: {fixed} bytes of LDS and {dynamic} dynamic ones exceed the agent's {limit}")]
    Lds {
        /// The kernel.
        kernel: String,
        /// Compiled in.
        fixed: u32,
        /// Asked for.
        dynamic: u32,
        /// The agent's limit.
        limit: u32,
    },
}
