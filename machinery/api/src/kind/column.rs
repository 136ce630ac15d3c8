//! A column of a Table.

/// One column of `kubectl get`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    pub name: String,
    /// The type: `string`, `integer`, `date`, …
    pub kind: String,
    /// The format: `name` for the first column of a built-in kind, else empty.
    pub format: String,
    pub description: String,
    /// The priority: 0 is always shown, a higher one only with `-o wide`.
    pub priority: i32,
    /// The source of its cells, as [`crate::cells::cell`] reads it; empty if the kind makes its rows itself.
    pub source: String,
}

impl Column {
    pub fn new(name: &str, kind: &str) -> Column {
        Column {
            name: name.to_string(),
            kind: kind.to_string(),
            format: String::new(),
            description: String::new(),
            priority: 0,
            source: String::new(),
        }
    }

    #[must_use]
    pub fn format(mut self, format: &str) -> Column {
        self.format = format.to_string();
        self
    }

    #[must_use]
    pub fn describe(mut self, description: &str) -> Column {
        self.description = description.to_string();
        self
    }

    /// Shows the column only with `-o wide`.
    #[must_use]
    pub fn wide(mut self) -> Column {
        self.priority = 1;
        self
    }
}
