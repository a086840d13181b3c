//! Fuzz input as a stream of small decisions.

/// What is left of the input. Past its end every value is 0.
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// All of `data`.
    pub fn new(data: &'a [u8]) -> Self {
        Self(data)
    }

    /// Whether everything has been used.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        u8::from_le_bytes(self.array())
    }

    /// The next two bytes.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// The next four bytes.
    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    /// The next eight bytes.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// A byte's worth of choice below `limit`, which is at most 256.
    pub fn below(&mut self, limit: usize) -> usize {
        usize::from(self.byte()) % limit.max(1)
    }

    /// The next `len` bytes, or what is left.
    pub fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (head, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        head
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let head = self.bytes(N);
        array[..head.len()].copy_from_slice(head);
        array
    }
}

/// Random numbers that depend on nothing but the seed (xorshift64*).
pub struct Rng(u64);

impl Rng {
    /// Any seed will do.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Bytes of as many numbers as it takes.
    #[cfg(test)]
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let numbers = std::iter::repeat_with(|| self.next().to_le_bytes());
        numbers.flatten().take(len).collect()
    }
}
