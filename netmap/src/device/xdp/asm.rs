//! A small assembler for BPF: just what the ports' program and the benchmarks need, written so that
//! a program reads from top to bottom. Jumps name labels; [`Asm::finish`] puts the distances in.
//!
//! An instruction is 64 bits: opcode (8), destination and source register (4 each), a signed
//! offset (16), a signed constant (32); RFC 9669, section 3.

use std::collections::HashMap;

/// A register. `R1`–`R5` are arguments and lost in a call, `R0` is the result, `R6`–`R9` are
/// kept, `R10` is the top of the stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[allow(missing_docs, reason = "they are called by their names")]
pub enum Reg {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
}

/// The right-hand side of an operation: a register or a constant (sign-extended to 64 bits).
#[derive(Clone, Copy, Debug)]
pub enum Operand {
    /// What is in this register.
    Reg(Reg),
    /// This number.
    Imm(i32),
}

impl From<Reg> for Operand {
    fn from(r: Reg) -> Self {
        Self::Reg(r)
    }
}

impl From<i32> for Operand {
    fn from(i: i32) -> Self {
        Self::Imm(i)
    }
}

/// Width of a memory access.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
#[allow(missing_docs, reason = "their names say it")]
pub enum Size {
    U32 = 0x00,
    U16 = 0x08,
    U8 = 0x10,
    U64 = 0x18,
}

/// 64-bit arithmetic.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
#[allow(missing_docs, reason = "their names say it")]
pub enum Op {
    Add = 0x00,
    Multiply = 0x20,
    And = 0x50,
    ShiftLeft = 0x60,
    ShiftRight = 0x70,
    Mov = 0xb0,
}

/// Conditions of a jump; comparisons are unsigned.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
#[allow(missing_docs, reason = "their names say it")]
pub enum Cond {
    Equal = 0x10,
    Above = 0x20,
    /// A common bit is set in both.
    BitSet = 0x40,
    NotEqual = 0x50,
    AtMost = 0xb0,
}

/// What a 64-bit constant stands for.
#[derive(Clone, Copy, Debug)]
pub enum Map {
    /// The map behind this descriptor, as helpers want it.
    Handle(i32),
    /// The address of the first value of the array behind this descriptor.
    Value(i32),
    /// A plain address: outside the kernel only.
    #[cfg(test)]
    Address(u64),
}

const CLASS_LDX: u8 = 0x01;
const CLASS_ST: u8 = 0x02;
const CLASS_STX: u8 = 0x03;
const CLASS_JMP: u8 = 0x05;
const CLASS_ALU64: u8 = 0x07;
const MODE_MEM: u8 = 0x60;
const SOURCE_REG: u8 = 0x08;
const LOAD_IMM64: u8 = 0x18;
const TO_BIG_ENDIAN: u8 = 0xdc;
const JUMP: u8 = 0x05;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;

/// A program in the making.
#[derive(Default)]
pub struct Asm {
    code: Vec<u64>,
    labels: HashMap<&'static str, usize>,
    jumps: Vec<(usize, &'static str)>,
}

impl Asm {
    fn emit(&mut self, opcode: u8, dst: Reg, src: u8, off: i16, imm: i32) {
        let regs = dst as u8 | src << 4;
        self.code.push(
            u64::from(opcode)
                | u64::from(regs) << 8
                | u64::from(off as u16) << 16
                | u64::from(imm as u32) << 32,
        );
    }

    fn emit_with(&mut self, opcode: u8, dst: Reg, operand: Operand, off: i16) {
        match operand {
            Operand::Reg(src) => self.emit(opcode | SOURCE_REG, dst, src as u8, off, 0),
            Operand::Imm(imm) => self.emit(opcode, dst, 0, off, imm),
        }
    }

    /// `dst = dst op operand`; for [`Op::Mov`] `dst = operand`.
    pub fn alu(&mut self, op: Op, dst: Reg, operand: impl Into<Operand>) {
        self.emit_with(CLASS_ALU64 | op as u8, dst, operand.into(), 0);
    }

    /// `dst = operand`.
    pub fn mov(&mut self, dst: Reg, operand: impl Into<Operand>) {
        self.alu(Op::Mov, dst, operand);
    }

    /// `dst = base + distance`.
    pub fn lea(&mut self, dst: Reg, base: Reg, distance: i32) {
        self.mov(dst, base);
        self.alu(Op::Add, dst, distance);
    }

    /// `dst = *(base + off)`, zero-extended.
    pub fn load(&mut self, size: Size, dst: Reg, base: Reg, off: i16) {
        self.emit(CLASS_LDX | MODE_MEM | size as u8, dst, base as u8, off, 0);
    }

    /// `*(base + off) = operand`.
    pub fn store(&mut self, size: Size, base: Reg, off: i16, operand: impl Into<Operand>) {
        match operand.into() {
            Operand::Reg(src) => self.emit(CLASS_STX | MODE_MEM | size as u8, base, src as u8, off, 0),
            Operand::Imm(imm) => self.emit(CLASS_ST | MODE_MEM | size as u8, base, 0, off, imm),
        }
    }

    /// Turns the low 16 bits of `dst` from network order into the machine's, and clears the rest.
    pub fn net_to_host16(&mut self, dst: Reg) {
        self.emit(TO_BIG_ENDIAN, dst, 0, 0, 16);
    }

    /// `dst =` a map.
    pub fn load_map(&mut self, dst: Reg, map: Map) {
        let (kind, low, high) = match map {
            Map::Handle(fd) => (1, fd, 0),
            Map::Value(fd) => (2, fd, 0),
            #[cfg(test)]
            Map::Address(a) => (0, a as i32, (a >> 32) as i32),
        };
        self.emit(LOAD_IMM64, dst, kind, 0, low);
        self.emit(0, Reg::R0, 0, 0, high);
    }

    /// The next instruction is where jumps to `label` lead.
    pub fn label(&mut self, label: &'static str) {
        let before = self.labels.insert(label, self.code.len());
        assert!(before.is_none(), "label {label} is there twice");
    }

    /// Goes on at `label`.
    pub fn jump(&mut self, label: &'static str) {
        self.jumps.push((self.code.len(), label));
        self.emit(JUMP, Reg::R0, 0, 0, 0);
    }

    /// Goes on at `label` if `left cond right` holds.
    pub fn jump_if(&mut self, left: Reg, cond: Cond, right: impl Into<Operand>, label: &'static str) {
        self.jumps.push((self.code.len(), label));
        self.emit_with(CLASS_JMP | cond as u8, left, right.into(), 0);
    }

    /// Calls the kernel's helper `number`.
    pub fn call(&mut self, number: i32) {
        self.emit(CALL, Reg::R0, 0, 0, number);
    }

    /// Ends the program with the result in `R0`.
    pub fn exit(&mut self) {
        self.emit(EXIT, Reg::R0, 0, 0, 0);
    }

    /// The finished program.
    ///
    /// # Panics
    /// When a jump leads to a label that is not there: a slip in the program's source.
    pub fn finish(mut self) -> Vec<u64> {
        for (at, label) in self.jumps {
            let to = *self.labels.get(label).unwrap_or_else(|| panic!("no label {label}"));
            let distance = to as i64 - at as i64 - 1;
            self.code[at] |= u64::from(distance as i16 as u16) << 16;
        }
        self.code
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_encoded_as_the_standard_says() {
        let mut a = Asm::default();
        a.label("start");
        a.mov(Reg::R6, Reg::R1);
        a.load(Size::U32, Reg::R2, Reg::R1, 16);
        a.jump_if(Reg::R2, Cond::Above, 5, "end");
        a.jump("start");
        a.label("end");
        a.exit();
        assert_eq!(
            a.finish(),
            [
                0x0000_0000_0000_16bf,
                0x0000_0000_0010_1261,
                0x0000_0005_0001_0225,
                0x0000_0000_fffc_0005,
                0x0000_0000_0000_0095
            ]
        );
    }

    #[test]
    #[should_panic(expected = "no label")]
    fn a_jump_to_nowhere_is_found() {
        let mut a = Asm::default();
        a.jump("nowhere");
        a.finish();
    }
}
