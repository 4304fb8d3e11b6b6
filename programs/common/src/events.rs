//! Events tell those who follow a program what it did. They are in the transaction's log, not in an account.

/// Declares a program's events; `emit` writes one into the log, as Anchor's clients read it: "Program data: "
/// and base64 of the first 8 bytes of sha256("event:Name") and the fields as Borsh.
/// `programs/build/idl.py` reads the same text.
#[macro_export]
macro_rules! events {
    ($(
        $(#[doc = $doc:literal])*
        $name:ident { $($(#[doc = $field_doc:literal])* $field:ident: $ty:ty,)* }
    )*) => { $(
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name { $($(#[doc = $field_doc])* pub $field: $ty,)* }

        impl $name {
            pub const DISCRIMINATOR: [u8; 8] = $crate::sha256::discriminator("event", stringify!($name));
            pub const SIZE: usize = 8 $(+ <$ty as $crate::events::Field>::SIZE)*;

            /// What `emit` logs.
            pub fn encode(&self) -> [u8; Self::SIZE] {
                let mut buffer = [0u8; Self::SIZE];
                let (tag, rest) = buffer.split_at_mut(8);
                tag.copy_from_slice(&Self::DISCRIMINATOR);
                $(let rest = $crate::events::Field::write(&self.$field, rest);)*
                let _ = rest;
                buffer
            }

            pub fn emit(&self) {
                $crate::sys::log_data(&self.encode());
            }
        }
    )* };
}

/// A type that an event's field may have.
pub trait Field {
    const SIZE: usize;
    /// Writes the Borsh bytes to the front of `out`, which has room, and returns what is behind them.
    fn write<'a>(&self, out: &'a mut [u8]) -> &'a mut [u8];
}

macro_rules! numbers {
    ($($ty:ty),*) => { $(
        impl Field for $ty {
            const SIZE: usize = core::mem::size_of::<$ty>();
            fn write<'a>(&self, out: &'a mut [u8]) -> &'a mut [u8] {
                let (head, tail) = out.split_at_mut(Self::SIZE);
                head.copy_from_slice(&self.to_le_bytes());
                tail
            }
        }
    )* };
}
numbers!(u8, u16, u32, u64, i64);

impl Field for crate::Key {
    const SIZE: usize = 32;
    fn write<'a>(&self, out: &'a mut [u8]) -> &'a mut [u8] {
        let (head, tail) = out.split_at_mut(32);
        head.copy_from_slice(self);
        tail
    }
}

#[cfg(test)]
mod tests {
    use crate::sys::take_logged;
    use crate::Key;

    crate::events! {
        /// One field of each type.
        Everything {
            /// Who.
            who: Key,
            small: u8,
            short: u16,
            number: u32,
            large: u64,
            when: i64,
        }
        Nothing {}
    }

    #[test]
    fn an_event_is_its_discriminator_and_its_fields_in_order() {
        let event = Everything {
            who: [7; 32],
            small: 1,
            short: 0x0302,
            number: 0x0706_0504,
            large: 0x0f0e_0d0c_0b0a_0908,
            when: -2,
        };
        let bytes = event.encode();
        assert_eq!(bytes.len(), 8 + 32 + 1 + 2 + 4 + 8 + 8);
        // python: hashlib.sha256(b"event:Everything").digest()[:8]
        assert_eq!(bytes[..8], [0x25, 0x5d, 0x5b, 0xa9, 0x0d, 0xd3, 0x1a, 0xc5]);
        assert_eq!(bytes[8..40], [7; 32]);
        assert_eq!(bytes[40..55], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
        assert_eq!(bytes[55..], [0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
    }

    #[test]
    fn emitted_events_are_logged_in_order() {
        take_logged();
        let event = Everything { who: [0; 32], small: 0, short: 0, number: 0, large: 0, when: 0 };
        event.emit();
        Nothing {}.emit();
        assert_eq!(take_logged(), [event.encode().to_vec(), Nothing::DISCRIMINATOR.to_vec()]);
        assert!(take_logged().is_empty());
    }
}
