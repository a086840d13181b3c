//! Looks into a kernel object: what it needs, how much stack it takes, which instructions it has.

use anyhow::{Context, Result, bail};
use object::read::elf::{ElfFile64, FileHeader};
use object::{
    Endianness, Object, ObjectSection, ObjectSymbol, RelocationFlags, RelocationTarget, SymbolKind,
};
use std::collections::{BTreeMap, BTreeSet};

/// What arch/x86/kernel/module.c relocates: NONE, 64, PC32, PLT32, 32, 32S, PC64.
const LOADABLE: [u32; 7] = [0, 1, 2, 4, 10, 11, 24];

type Elf<'a> = ElfFile64<'a, Endianness>;

/// One function of the object.
#[derive(Default)]
pub(crate) struct Function {
    /// Bytes of stack: locals, saved registers and return address.
    pub(crate) frame: u64,
    /// What it refers to: defined functions and undefined symbols, by demangled name.
    pub(crate) refers: BTreeSet<String>,
}

/// What was found in the object.
pub(crate) struct Facts {
    /// Undefined symbols by linker name.
    pub(crate) undefined: BTreeSet<String>,
    /// Functions by demangled name.
    pub(crate) functions: BTreeMap<String, Function>,
    /// Relocation types in code and data that the kernel's module loader does not know.
    pub(crate) relocations: BTreeSet<u32>,
    /// Bytes of code.
    pub(crate) text: u64,
    /// Bytes of data, read-only and not.
    pub(crate) data: u64,
    /// Bytes of data that is written or starts at zero.
    pub(crate) writable: u64,
}

impl Facts {
    /// Reads a relocatable x86-64 object built with `-Zemit-stack-sizes`.
    pub(crate) fn read(bytes: &[u8]) -> Result<Facts> {
        let elf = Elf::parse(bytes).context("parse the object")?;
        let mut facts = Facts {
            undefined: elf
                .symbols()
                .filter(|s| s.is_undefined())
                .filter_map(|s| Some(s.name().ok()?.into()))
                .collect(),
            functions: BTreeMap::new(),
            relocations: BTreeSet::new(),
            text: 0,
            data: 0,
            writable: 0,
        };
        facts.undefined.remove("");
        for section in elf.sections() {
            match section.kind() {
                object::SectionKind::Text => facts.text += section.size(),
                object::SectionKind::ReadOnlyData | object::SectionKind::ReadOnlyString => {
                    facts.data += section.size()
                }
                object::SectionKind::Data | object::SectionKind::UninitializedData => {
                    facts.data += section.size();
                    facts.writable += section.size();
                }
                _ => continue,
            }
            let kinds = section
                .relocations()
                .map(|(_, relocation)| match relocation.flags() {
                    RelocationFlags::Elf { r_type } => r_type,
                    _ => u32::MAX,
                });
            facts
                .relocations
                .extend(kinds.filter(|kind| !LOADABLE.contains(kind)));
        }
        facts.collect_references(&elf)?;
        facts.collect_frames(&elf)?;
        Ok(facts)
    }

    fn collect_references(&mut self, elf: &Elf<'_>) -> Result<()> {
        let spans: Vec<(usize, u64, u64, String)> = elf
            .symbols()
            .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.is_definition())
            .filter_map(|symbol| {
                Some((
                    symbol.section_index()?.0,
                    symbol.address(),
                    symbol.size(),
                    demangle(symbol.name().ok()?),
                ))
            })
            .collect();
        let holder = |section: usize, at: u64| {
            spans
                .iter()
                .find(|(s, from, size, _)| *s == section && (*from..from + size).contains(&at))
                .map(|s| &s.3)
        };
        for (_, _, _, name) in &spans {
            self.functions.entry(name.clone()).or_default();
        }
        for section in elf
            .sections()
            .filter(|section| section.kind() == object::SectionKind::Text)
        {
            for (at, relocation) in section.relocations() {
                let RelocationTarget::Symbol(index) = relocation.target() else {
                    continue;
                };
                let symbol = elf.symbol_by_index(index).context("find a relocation's symbol")?;
                let target = match symbol.kind() {
                    // A local callee is named by its section and the distance, less the 4 bytes of the operand.
                    SymbolKind::Section => {
                        let Some(section) = symbol.section_index() else {
                            continue;
                        };
                        let at = u64::try_from(relocation.addend() + 4).unwrap_or(0);
                        match holder(section.0, at) {
                            Some(name) => name.clone(),
                            None => continue,
                        }
                    }
                    _ if symbol.is_undefined() || symbol.kind() == SymbolKind::Text => {
                        demangle(symbol.name().context("read a symbol's name")?)
                    }
                    _ => continue,
                };
                if let Some(name) = holder(section.index().0, at) {
                    let name = name.clone();
                    self.functions.entry(name).or_default().refers.insert(target);
                }
            }
        }
        Ok(())
    }

    /// `.stack_sizes` is a list of {u64 function address (relocated), ULEB128 bytes}.
    fn collect_frames(&mut self, elf: &Elf<'_>) -> Result<()> {
        let mut seen = 0;
        for section in elf
            .sections()
            .filter(|section| section.name() == Ok(".stack_sizes"))
        {
            let data = section.data().context("read .stack_sizes")?;
            for (at, relocation) in section.relocations() {
                let RelocationTarget::Symbol(index) = relocation.target() else {
                    continue;
                };
                let symbol = elf.symbol_by_index(index).context("find a stack size's symbol")?;
                let name = match symbol.kind() {
                    SymbolKind::Section => {
                        let (section, at) = (
                            symbol.section_index(),
                            u64::try_from(relocation.addend()).unwrap_or(0),
                        );
                        let owner = elf.symbols().find(|s| {
                            s.kind() == SymbolKind::Text && s.section_index() == section && s.address() == at
                        });
                        owner.and_then(|s| s.name().ok().map(demangle))
                    }
                    _ => symbol.name().ok().map(demangle),
                };
                let size = usize::try_from(at)
                    .ok()
                    .and_then(|at| uleb128(data.get(at + 8..)?));
                let (Some(name), Some(size)) = (name, size) else {
                    bail!("unreadable entry in .stack_sizes")
                };
                let function = self.functions.entry(name).or_default();
                // Two copies of one generic function may bear one demangled name: the larger counts.
                function.frame = function.frame.max(size + 8);
                seen += 1;
            }
        }
        if seen == 0 {
            bail!("the object has no .stack_sizes");
        }
        Ok(())
    }

    /// Functions that refer to `name`.
    pub(crate) fn who_refers(&self, name: &str) -> Vec<&str> {
        self.functions
            .iter()
            .filter(|(_, f)| f.refers.contains(name))
            .map(|(name, _)| name.as_str())
            .collect()
    }

    /// The deepest call path: bytes of stack and the functions on it. `None` if calls recurse.
    pub(crate) fn deepest(&self) -> Option<(u64, Vec<&str>)> {
        let mut known = BTreeMap::new();
        for name in self.functions.keys() {
            self.depth(name, &mut vec![], &mut known)?;
        }
        let (start, _) = known.iter().max_by_key(|(_, (depth, _))| *depth)?;
        let mut path = vec![*start];
        let mut at = *start;
        while let Some((_, Some(next))) = known.get(at) {
            path.push(next);
            at = next;
        }
        Some((known.get(start)?.0, path))
    }

    fn depth<'a>(
        &'a self,
        name: &'a str,
        open: &mut Vec<&'a str>,
        known: &mut BTreeMap<&'a str, (u64, Option<&'a str>)>,
    ) -> Option<u64> {
        if let Some((depth, _)) = known.get(name) {
            return Some(*depth);
        }
        if open.contains(&name) {
            return None;
        }
        open.push(name);
        let function = self.functions.get(name)?;
        let mut best = (0, None);
        for callee in function
            .refers
            .iter()
            .filter(|callee| self.functions.contains_key(*callee))
        {
            let depth = self.depth(callee, open, known)?;
            if depth > best.0 {
                best = (depth, Some(callee.as_str()));
            }
        }
        open.pop();
        known.insert(name, (function.frame + best.0, best.1));
        Some(function.frame + best.0)
    }
}

/// Instructions that the kernel's own code must not have, in `objdump -d --no-show-raw-insn` output: the
/// function, the instruction and why.
pub(crate) fn forbidden_instructions(disassembly: &str) -> Vec<(String, String, &'static str)> {
    let mut function = String::new();
    let mut found = vec![];
    for line in disassembly.lines() {
        if let Some(name) = line.strip_suffix(">:").and_then(|line| line.split_once(" <")) {
            function = demangle(name.1);
        } else if let Some((_, code)) = line.split_once(":\t") {
            if let Some(why) = forbidden(code.split('#').next().unwrap_or(code).trim()) {
                found.push((function.clone(), code.trim().to_string(), why));
            }
        }
    }
    found
}

fn forbidden(code: &str) -> Option<&'static str> {
    let (mnemonic, operands) = code.split_once(char::is_whitespace).unwrap_or((code, ""));
    let vector = [
        "%xmm", "%ymm", "%zmm", "%mm", "%k0", "%k1", "%k2", "%k3", "%k4", "%k5", "%k6", "%k7",
    ];
    if vector.iter().any(|register| operands.contains(register)) {
        Some("vector registers")
    } else if mnemonic.starts_with('f') || operands.contains("%st") || mnemonic == "emms" {
        Some("x87")
    } else if operands.trim_start().starts_with('*') {
        Some("indirect branch, which needs a retpoline")
    } else {
        None
    }
}

/// `usb4_engine::link::Link::on_frame`, without the hash.
pub(crate) fn demangle(name: &str) -> String {
    format!("{:#}", rustc_demangle::demangle(name))
}

fn uleb128(bytes: &[u8]) -> Option<u64> {
    let mut value = 0;
    for (i, byte) in bytes.iter().enumerate().take(9) {
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// True for an x86-64 relocatable object.
pub(crate) fn is_kernel_object(bytes: &[u8]) -> bool {
    Elf::parse(bytes).is_ok_and(|elf| {
        let header = elf.elf_header();
        header.e_type(Endianness::Little) == object::elf::ET_REL
            && header.e_machine(Endianness::Little) == object::elf::EM_X86_64
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floating_point_and_vector_instructions_are_found() {
        let text = "0000000000000000 <f>:\n   0:\tendbr64\n   4:\tmovups %xmm0,(%rdi)\n   8:\tfldt   0x8(%rdi)\n\
                    \x20  c:\tcall   11 <f+0x11>\n  11:\tjmp    *%rax\n  13:\tmov    %rax,%rbx  # %xmm0\n";
        let found = forbidden_instructions(text);
        let why: Vec<&str> = found.iter().map(|(_, _, why)| *why).collect();
        assert_eq!(
            why,
            [
                "vector registers",
                "x87",
                "indirect branch, which needs a retpoline"
            ]
        );
        assert!(found.iter().all(|(function, ..)| function == "f"));
    }

    #[test]
    fn a_recursive_object_has_no_deepest_path() {
        let mut facts = Facts {
            undefined: BTreeSet::new(),
            functions: BTreeMap::new(),
            relocations: BTreeSet::new(),
            text: 0,
            data: 0,
            writable: 0,
        };
        let mut add = |name: &str, frame, refers: &[&str]| {
            let refers = refers.iter().map(|s| s.to_string()).collect();
            facts
                .functions
                .insert(name.to_string(), Function { frame, refers });
        };
        add("a", 10, &["b", "c"]);
        add("b", 20, &[]);
        add("c", 5, &["b", "memcpy"]);
        assert_eq!(facts.deepest(), Some((35, vec!["a", "c", "b"])));
        facts
            .functions
            .get_mut("b")
            .unwrap()
            .refers
            .insert("a".to_string());
        assert_eq!(facts.deepest(), None);
    }

    #[test]
    fn uleb128_reads_more_than_one_byte() {
        assert_eq!(uleb128(&[0xe5, 0x8e, 0x26]), Some(624_485));
        assert_eq!(uleb128(&[0x80]), None);
    }
}
