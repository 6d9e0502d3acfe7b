//! Enums whose values have names, and the errors for unknown names.

use crate::{CoreError, UnknownName};

/// An unknown name of an op, phase, dtype, device or layer kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// No [`Op`](crate::Op) has that name.
    #[error(transparent)]
    Op(UnknownName),
    /// No [`Phase`](crate::Phase) has that name.
    #[error(transparent)]
    Phase(UnknownName),
    /// No [`Dtype`](crate::Dtype) has that name.
    #[error(transparent)]
    Dtype(UnknownName),
    /// No [`DeviceKind`](crate::DeviceKind) has that name, and it does not start with `oot:`.
    #[error(transparent)]
    Device(UnknownName),
    /// No [`LayerKind`](crate::LayerKind) has that name.
    #[error(transparent)]
    LayerKind(UnknownName),
}

impl CoreError for NameError {
    fn code(&self) -> &'static str {
        match self {
            Self::Op(_) => "unknown_op",
            Self::Phase(_) => "unknown_phase",
            Self::Dtype(_) => "unknown_dtype",
            Self::Device(_) => "unknown_device",
            Self::LayerKind(_) => "unknown_layer_kind",
        }
    }

    fn fields(&self) -> serde_json::Value {
        match self {
            Self::Op(name)
            | Self::Phase(name)
            | Self::Dtype(name)
            | Self::Device(name)
            | Self::LayerKind(name) => name.fields(),
        }
    }
}

/// Defines an enum whose values have names: the list of values, their names, and parsing with suggestions.
macro_rules! names {
    ($(#[$doc:meta])* $type:ident, $what:literal, $error:ident, { $($(#[$vdoc:meta])* $variant:ident = $name:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        #[serde(try_from = "String", into = "&'static str")]
        pub enum $type {
            $($(#[$vdoc])* $variant,)+
        }

        impl $type {
            /// All values, in the order of declaration.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// The name that [`FromStr`](std::str::FromStr) parses and [`Display`](std::fmt::Display) shows.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl std::str::FromStr for $type {
            type Err = crate::NameError;

            fn from_str(found: &str) -> Result<Self, crate::NameError> {
                Self::ALL
                    .into_iter()
                    .find(|value| value.name() == found)
                    .ok_or_else(|| crate::NameError::$error(crate::UnknownName::new($what, found, [$($name),+])))
            }
        }

        impl TryFrom<String> for $type {
            type Error = crate::NameError;

            fn try_from(found: String) -> Result<Self, crate::NameError> {
                found.parse()
            }
        }

        impl From<$type> for &'static str {
            fn from(value: $type) -> Self {
                value.name()
            }
        }
    };
}
pub(crate) use names;
