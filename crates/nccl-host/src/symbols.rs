//! What a library's symbol table says: where the CUDA functions and the kernels in it are.

use anyhow::{Context, Result, bail};
use object::read::elf::ElfFile64;
use object::{Object, ObjectSymbol, ObjectSymbolTable, ReadCache, RelocationTarget, SymbolKind};
use std::fs::File;
use std::path::Path;

/// A function, at an offset from where the library is loaded.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) offset: usize,
    pub(crate) size: usize,
}

/// The functions of a library that concern us.
#[derive(Debug, Default)]
pub(crate) struct Functions {
    /// The CUDA run time that is linked into it.
    pub(crate) cuda: Vec<Function>,
    /// What stands for kernels on the host's side; names are the kernels', without argument types.
    pub(crate) kernels: Vec<Function>,
    /// Where it has the address of `sched_yield`, at offsets as functions are.
    pub(crate) yields: Vec<usize>,
    /// It is RCCL, which gets its run time from a library.
    pub(crate) hip: bool,
}

/// Reads the symbol table of the file at `path`, which must not be stripped.
pub(crate) fn read(path: &Path) -> Result<Functions> {
    let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
    let cache = ReadCache::new(file);
    let elf: ElfFile64<'_, object::Endianness, _> =
        ElfFile64::parse(&cache).with_context(|| format!("{} is not an ELF library", path.display()))?;
    let mut found = Functions::default();
    let undefined = elf.dynamic_symbols().filter(ObjectSymbol::is_undefined);
    if undefined
        .filter_map(|symbol| symbol.name().ok())
        .any(|name| name.starts_with("hip"))
    {
        found.hip = true;
        return Ok(found);
    }
    for symbol in elf.symbols() {
        if symbol.kind() != SymbolKind::Text || symbol.address() == 0 {
            continue;
        }
        let Ok(name) = symbol.name() else { continue };
        let list = if name.starts_with("cuda") {
            &mut found.cuda
        } else if name.contains("DevKernel") {
            &mut found.kernels
        } else {
            continue;
        };
        list.push(Function {
            name: kernel_name(name).unwrap_or(name).to_string(),
            offset: usize::try_from(symbol.address())?,
            size: usize::try_from(symbol.size())?,
        });
    }
    if let (Some(relocations), Some(symbols)) = (elf.dynamic_relocations(), elf.dynamic_symbol_table()) {
        for (offset, relocation) in relocations {
            if let RelocationTarget::Symbol(index) = relocation.target()
                && symbols.symbol_by_index(index)?.name() == Ok("sched_yield")
            {
                found.yields.push(usize::try_from(offset)?);
            }
        }
    }
    if found.cuda.is_empty() {
        bail!(
            "{} has no CUDA functions in its symbol table: it is stripped, or links the CUDA run time dynamically",
            path.display()
        );
    }
    Ok(found)
}

/// The name in a C++ symbol without a name space: `_Z<length><name><types>`.
fn kernel_name(symbol: &str) -> Option<&str> {
    let rest = symbol.strip_prefix("_Z")?;
    let digits = rest.find(|c: char| !c.is_ascii_digit())?;
    let (length, name) = rest.split_at_checked(digits)?;
    name.get(..length.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_known_by_its_name_without_types() {
        assert_eq!(kernel_name("_Z3abc24Storage"), Some("abc"));
        assert_eq!(kernel_name("_Z9abc"), None);
        assert_eq!(kernel_name("cudaFree"), None);
    }

    #[test]
    fn a_library_without_cuda_functions_is_refused_by_name() {
        let own = std::env::current_exe().unwrap();
        let error = read(&own).unwrap_err().to_string();
        assert!(error.contains(&own.display().to_string()), "{error}");
    }
}
