//! Borsh arguments, read in place.
use crate::{Common, Key, Res};
use core::marker::PhantomData;

pub struct Reader {
    rest: &'static [u8],
}

impl Reader {
    pub fn new(data: &'static [u8]) -> Reader {
        Reader { rest: data }
    }
    pub fn take(&mut self, len: usize) -> Res<&'static [u8]> {
        if len > self.rest.len() {
            return Err(Common::InvalidInstructionData.into());
        }
        let (head, tail) = self.rest.split_at(len);
        self.rest = tail;
        Ok(head)
    }
    pub fn array<const N: usize>(&mut self) -> Res<&'static [u8; N]> {
        self.take(N)?.try_into().map_err(|_| Common::InvalidInstructionData.into())
    }
    /// Bytes left over mean that caller and program disagree about the arguments.
    pub fn finish(self) -> Res {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(Common::InvalidInstructionData.into())
        }
    }
}

pub trait Decode: Sized {
    fn decode(reader: &mut Reader) -> Res<Self>;
}

macro_rules! numbers {
    ($($ty:ty),*) => { $(
        impl Decode for $ty {
            fn decode(reader: &mut Reader) -> Res<$ty> {
                Ok(<$ty>::from_le_bytes(*reader.array()?))
            }
        }
    )* };
}
numbers!(u8, u16, u32, u64, i64);

impl Decode for bool {
    fn decode(reader: &mut Reader) -> Res<bool> {
        match u8::decode(reader)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Common::InvalidInstructionData.into()),
        }
    }
}

impl<const N: usize> Decode for &'static [u8; N] {
    fn decode(reader: &mut Reader) -> Res<Self> {
        reader.array()
    }
}

impl<const N: usize> Decode for [u64; N] {
    fn decode(reader: &mut Reader) -> Res<Self> {
        let mut words = [0u64; N];
        for word in words.iter_mut() {
            *word = u64::decode(reader)?;
        }
        Ok(words)
    }
}

impl<T: Decode> Decode for Option<T> {
    fn decode(reader: &mut Reader) -> Res<Self> {
        if bool::decode(reader)? {
            Ok(Some(T::decode(reader)?))
        } else {
            Ok(None)
        }
    }
}

/// A Borsh string or byte vector.
#[derive(Clone, Copy)]
pub struct Text(pub &'static [u8]);

impl Decode for Text {
    fn decode(reader: &mut Reader) -> Res<Text> {
        let len = u32::decode(reader)? as usize;
        Ok(Text(reader.take(len)?))
    }
}

/// A `Text` that the IDL calls bytes.
pub type Bytes = Text;

/// A Borsh vector of keys.
#[derive(Clone, Copy)]
pub struct Keys(pub &'static [u8]);

impl Keys {
    pub fn len(&self) -> usize {
        self.0.len() / 32
    }
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Decode for Keys {
    fn decode(reader: &mut Reader) -> Res<Keys> {
        let len = u32::decode(reader)? as usize;
        let bytes = len.checked_mul(32).ok_or(Common::InvalidInstructionData)?;
        Ok(Keys(reader.take(bytes)?))
    }
}

/// A struct without implicit padding, whose Borsh bytes are its memory. Not aligned, so it stays bytes.
#[derive(Clone, Copy)]
pub struct Raw<T> {
    pub bytes: &'static [u8],
    kind: PhantomData<T>,
}

impl<T> Decode for Raw<T> {
    fn decode(reader: &mut Reader) -> Res<Raw<T>> {
        Ok(Raw { bytes: reader.take(core::mem::size_of::<T>())?, kind: PhantomData })
    }
}

/// Copies a struct's bytes over `target`; true when that changed anything.
pub fn replace<T>(target: &mut T, bytes: &[u8]) -> bool {
    let size = core::mem::size_of::<T>();
    let old = unsafe { core::slice::from_raw_parts_mut((target as *mut T).cast::<u8>(), size) };
    if old == bytes {
        return false;
    }
    old.copy_from_slice(bytes);
    true
}

/// Writes Borsh bytes into a fixed buffer, for calls of other programs and for account data.
pub struct Writer<'a> {
    buffer: &'a mut [u8],
    len: usize,
}

impl<'a> Writer<'a> {
    pub fn new(buffer: &'a mut [u8]) -> Writer<'a> {
        Writer { buffer, len: 0 }
    }
    pub fn put(&mut self, bytes: &[u8]) -> Res {
        let end = self.len + bytes.len();
        let room = self.buffer.get_mut(self.len..end).ok_or(Common::ArithmeticOverflow)?;
        room.copy_from_slice(bytes);
        self.len = end;
        Ok(())
    }
    pub fn put_u8(&mut self, value: u8) -> Res {
        self.put(&[value])
    }
    pub fn put_u32(&mut self, value: u32) -> Res {
        self.put(&value.to_le_bytes())
    }
    pub fn put_u64(&mut self, value: u64) -> Res {
        self.put(&value.to_le_bytes())
    }
    pub fn put_key(&mut self, key: &Key) -> Res {
        self.put(key)
    }
    pub fn put_text(&mut self, text: &[u8]) -> Res {
        self.put_u32(text.len() as u32)?;
        self.put(text)
    }
    pub fn put_option(&mut self, bytes: Option<&[u8]>) -> Res {
        match bytes {
            None => self.put_u8(0),
            Some(bytes) => {
                self.put_u8(1)?;
                self.put(bytes)
            }
        }
    }
    pub fn len(&self) -> usize {
        self.len
    }
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}
