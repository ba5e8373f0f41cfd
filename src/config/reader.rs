//! Reads one section of the file, key by key: what is missing, unknown or wrong is collected, and
//! reading goes on.

use std::{collections::HashSet, hash::Hash};

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    problem::{Offset, Problems},
    schema::{Section, nearest},
};

/// A value and where it stands in the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed<T> {
    /// Where it stands.
    pub(super) at: Offset,
    /// The value.
    pub(super) value: T,
}

/// What a value must be: gives it, or says what is wrong with it and what to do.
pub(super) trait Kind<T>: Fn(&DeValue<'_>) -> Result<T, String> {}
impl<T, F: Fn(&DeValue<'_>) -> Result<T, String>> Kind<T> for F {}

/// One section of a file, or one entry of a list of tables.
pub(super) struct Reader<'t> {
    schema: &'static Section,
    table: &'t DeTable<'t>,
    /// Where the section begins.
    pub(super) at: Offset,
}

impl<'t> Reader<'t> {
    /// Opens the section that `value` holds, and reports the keys that it may not have.
    pub(super) fn open(
        schema: &'static Section,
        value: &'t Spanned<DeValue<'t>>,
        problems: &mut Problems<'_>,
    ) -> Option<Self> {
        let at = value.span().start;
        let DeValue::Table(table) = value.get_ref() else {
            let keys = schema.keys[0];
            let found = value.get_ref().type_str();
            problems.error(at, schema.name, format!("found {found}; write a table, {{ {keys} = ... }}"));
            return None;
        };
        for key in table.keys() {
            let name = key.get_ref().as_ref();
            if !schema.keys.contains(&name) {
                let hint = match nearest(name, schema.keys.iter().copied()) {
                    Some(near) => format!("did you mean {near:?}?"),
                    None => format!("the keys here are {}", schema.keys.join(", ")),
                };
                problems.error(
                    key.span().start,
                    format!("{}.{name}", schema.name),
                    format!("unknown key; {hint}"),
                );
            }
        }
        Some(Self { schema, table, at })
    }

    /// The key's full name, `port.mtu`.
    pub(super) fn path(&self, key: &str) -> String {
        format!("{}.{key}", self.schema.name)
    }

    /// The value of `key` as it stands in the file.
    pub(super) fn raw(&self, key: &str) -> Option<&'t Spanned<DeValue<'t>>> {
        debug_assert!(self.schema.keys.contains(&key), "{} is not in the schema", self.path(key));
        self.table.iter().find(|(name, _)| name.get_ref() == key).map(|(_, value)| value)
    }

    /// Whether `key` is given at all, right or wrong.
    pub(super) fn has(&self, key: &str) -> bool {
        self.raw(key).is_some()
    }

    /// Where the value of `key` stands; the section's place if it is not given.
    pub(super) fn place(&self, key: &str) -> Offset {
        self.raw(key).map_or(self.at, |value| value.span().start)
    }

    /// The value of `key`, if it is given and right.
    pub(super) fn read<T>(
        &self,
        problems: &mut Problems<'_>,
        key: &str,
        kind: impl Kind<T>,
    ) -> Option<Placed<T>> {
        self.raw(key).and_then(|value| self.one(problems, key, value, &kind))
    }

    /// The value of `key`; that it is missing is an error, with `hint` as what to do.
    pub(super) fn require<T>(
        &self,
        problems: &mut Problems<'_>,
        key: &str,
        hint: &str,
        kind: impl Kind<T>,
    ) -> Option<Placed<T>> {
        if !self.has(key) {
            problems.error(self.at, self.path(key), format!("missing; add {hint}"));
        }
        self.read(problems, key, kind)
    }

    /// The values of the list `key` that are right, if it is given.
    pub(super) fn list<T>(
        &self,
        problems: &mut Problems<'_>,
        key: &str,
        kind: impl Kind<T>,
    ) -> Option<Vec<Placed<T>>> {
        let value = self.raw(key)?;
        let DeValue::Array(entries) = value.get_ref() else {
            let message = format!("found {}; write a list, [...]", value.get_ref().type_str());
            problems.error(value.span().start, self.path(key), message);
            return None;
        };
        if entries.is_empty() {
            let message = "an empty list; leave the key out, or put something in";
            problems.error(value.span().start, self.path(key), message);
        }
        Some(entries.iter().filter_map(|entry| self.one(problems, key, entry, &kind)).collect())
    }

    /// As [`list`](Self::list), but one value may stand without its brackets.
    pub(super) fn one_or_list<T>(
        &self,
        problems: &mut Problems<'_>,
        key: &str,
        kind: impl Kind<T>,
    ) -> Option<Vec<Placed<T>>> {
        match self.raw(key)?.get_ref() {
            DeValue::Array(_) => self.list(problems, key, kind),
            _ => Some(self.read(problems, key, kind).into_iter().collect()),
        }
    }

    fn one<T>(
        &self,
        problems: &mut Problems<'_>,
        key: &str,
        value: &Spanned<DeValue<'_>>,
        kind: &impl Kind<T>,
    ) -> Option<Placed<T>> {
        let at = value.span().start;
        match kind(value.get_ref()) {
            Ok(value) => Some(Placed { at, value }),
            Err(message) => {
                problems.error(at, self.path(key), message);
                None
            }
        }
    }
}

/// The values without their places.
pub(super) fn values<T>(placed: Option<Vec<Placed<T>>>) -> Vec<T> {
    placed.unwrap_or_default().into_iter().map(|placed| placed.value).collect()
}

/// Reports the second of any two equal values of one list.
pub(super) fn refuse_twice<T: Eq + Hash + std::fmt::Display>(
    problems: &mut Problems<'_>,
    key: &str,
    list: &[Placed<T>],
) {
    let mut seen = HashSet::new();
    for entry in list {
        if !seen.insert(&entry.value) {
            problems.error(entry.at, key, format!("{} is given twice; remove one", entry.value));
        }
    }
}
