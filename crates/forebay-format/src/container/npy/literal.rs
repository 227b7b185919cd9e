//! The Python literals in headers of npy: a parser that computes nothing and calls nothing.
//!
//! It reads `None`, `True`, `False`, non-negative integers, strings, tuples, lists and
//! dictionaries, as `repr` writes them. Everything else is an error with its offset.

use std::fmt;

/// Most brackets within one another. A structured type takes two for each level of structure.
const DEEPEST: u32 = 64;

/// A Python literal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Literal {
    None,
    Bool(bool),
    Integer(u64),
    Text(String),
    Tuple(Vec<Literal>),
    List(Vec<Literal>),
    Dictionary(Vec<(Literal, Literal)>),
}

/// What is no literal, and where.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LiteralError {
    /// Distance from the start of the string \[bytes\].
    pub(super) at: usize,
    pub(super) expected: &'static str,
    pub(super) found: String,
}

impl Literal {
    /// Reads one literal and the blanks around it; `text` holds characters with their offsets
    /// \[bytes\].
    pub(super) fn parse(text: &[(usize, char)]) -> Result<Self, LiteralError> {
        let mut parser = Parser { text, next: 0 };
        let value = parser.value(0)?;
        parser.skip_blanks();
        if parser.peek().is_some() {
            return Err(parser.error("the end of the literal"));
        }
        Ok(value)
    }
}

/// As Python's `repr` writes it.
impl fmt::Display for Literal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sequence = |out: &mut fmt::Formatter<'_>, items: &[Self]| {
            for (number, item) in items.iter().enumerate() {
                write!(out, "{}{item}", if number == 0 { "" } else { ", " })?;
            }
            Ok(())
        };
        match self {
            Self::None => out.write_str("None"),
            Self::Bool(true) => out.write_str("True"),
            Self::Bool(false) => out.write_str("False"),
            Self::Integer(value) => write!(out, "{value}"),
            Self::Text(text) => write_text(out, text),
            Self::Tuple(items) => {
                out.write_str("(")?;
                sequence(out, items)?;
                out.write_str(if items.len() == 1 { ",)" } else { ")" })
            }
            Self::List(items) => {
                out.write_str("[")?;
                sequence(out, items)?;
                out.write_str("]")
            }
            Self::Dictionary(items) => {
                out.write_str("{")?;
                for (number, (key, value)) in items.iter().enumerate() {
                    write!(out, "{}{key}: {value}", if number == 0 { "" } else { ", " })?;
                }
                out.write_str("}")
            }
        }
    }
}

fn write_text(out: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    out.write_str("'")?;
    for character in text.chars() {
        match character {
            '\'' | '\\' => write!(out, "\\{character}")?,
            control if control.is_control() => write!(out, "\\x{:02x}", u32::from(control))?,
            other => write!(out, "{other}")?,
        }
    }
    out.write_str("'")
}

struct Parser<'a> {
    text: &'a [(usize, char)],
    next: usize,
}

impl Parser<'_> {
    fn peek(&self) -> Option<char> {
        self.text.get(self.next).map(|(_, character)| *character)
    }

    fn error(&self, expected: &'static str) -> LiteralError {
        let Some((at, character)) = self.text.get(self.next) else {
            let at = self.text.last().map_or(0, |(at, character)| at + character.len_utf8());
            return LiteralError { at, expected, found: "the end of the header".to_owned() };
        };
        LiteralError { at: *at, expected, found: format!("{character:?}") }
    }

    fn skip_blanks(&mut self) {
        while matches!(self.peek(), Some(' ' | '\t' | '\n' | '\r')) {
            self.next += 1;
        }
    }

    /// Takes a character if it is the next one.
    fn take(&mut self, wanted: char) -> bool {
        let found = self.peek() == Some(wanted);
        self.next += usize::from(found);
        found
    }

    fn value(&mut self, depth: u32) -> Result<Literal, LiteralError> {
        self.skip_blanks();
        if depth > DEEPEST {
            return Err(self.error("fewer brackets within one another"));
        }
        match self.peek() {
            Some('{') => self.dictionary(depth),
            Some('[') => Ok(Literal::List(self.sequence(']', depth)?.0)),
            Some('(') => {
                let (mut items, comma) = self.sequence(')', depth)?;
                // Brackets around one value, without a comma, are only brackets.
                Ok(if items.len() == 1 && !comma { items.remove(0) } else { Literal::Tuple(items) })
            }
            Some('\'' | '"') => self.text_literal(),
            Some('0'..='9') => self.integer(),
            Some('A'..='Z') => self.word(),
            _ => Err(self.error("a Python literal")),
        }
    }

    /// Reads the items up to the closing bracket, and whether a comma follows the last one.
    fn sequence(&mut self, end: char, depth: u32) -> Result<(Vec<Literal>, bool), LiteralError> {
        self.next += 1;
        let (mut items, mut comma) = (Vec::new(), true);
        loop {
            self.skip_blanks();
            if self.take(end) {
                return Ok((items, comma));
            }
            if !comma {
                return Err(self.error("a comma or the closing bracket"));
            }
            items.push(self.value(depth + 1)?);
            self.skip_blanks();
            comma = self.take(',');
        }
    }

    fn dictionary(&mut self, depth: u32) -> Result<Literal, LiteralError> {
        self.next += 1;
        let (mut items, mut comma) = (Vec::new(), true);
        loop {
            self.skip_blanks();
            if self.take('}') {
                return Ok(Literal::Dictionary(items));
            }
            if !comma {
                return Err(self.error("a comma or '}'"));
            }
            let key = self.value(depth + 1)?;
            self.skip_blanks();
            if !self.take(':') {
                return Err(self.error("':'"));
            }
            items.push((key, self.value(depth + 1)?));
            self.skip_blanks();
            comma = self.take(',');
        }
    }

    fn integer(&mut self) -> Result<Literal, LiteralError> {
        let start = self.next;
        let mut value = 0_u64;
        while let Some(digit) = self.peek().and_then(|character| character.to_digit(10)) {
            let grown = value.checked_mul(10).and_then(|value| value.checked_add(u64::from(digit)));
            let Some(grown) = grown else {
                self.next = start;
                return Err(self.error("an integer below 2^64"));
            };
            value = grown;
            self.next += 1;
        }
        // Python 2 appended an L to long integers.
        self.take('L');
        Ok(Literal::Integer(value))
    }

    fn word(&mut self) -> Result<Literal, LiteralError> {
        let start = self.next;
        let mut word = String::new();
        while let Some(character) = self.peek().filter(char::is_ascii_alphanumeric) {
            // Longer words are none of the three.
            if word.len() < 8 {
                word.push(character);
            }
            self.next += 1;
        }
        match word.as_str() {
            "None" => Ok(Literal::None),
            "True" => Ok(Literal::Bool(true)),
            "False" => Ok(Literal::Bool(false)),
            _ => {
                self.next = start;
                Err(self.error("None, True or False"))
            }
        }
    }

    fn text_literal(&mut self) -> Result<Literal, LiteralError> {
        let quote = self.peek();
        self.next += 1;
        let mut text = String::new();
        loop {
            match self.peek() {
                None | Some('\n') => return Err(self.error("the closing quote")),
                found if found == quote => {
                    self.next += 1;
                    return Ok(Literal::Text(text));
                }
                Some('\\') => text.push(self.escape()?),
                Some(character) => {
                    text.push(character);
                    self.next += 1;
                }
            }
        }
    }

    fn escape(&mut self) -> Result<char, LiteralError> {
        let start = self.next;
        self.next += 1;
        let kind = self.peek();
        self.next += 1;
        let digits = match kind {
            Some(same @ ('\\' | '\'' | '"')) => return Ok(same),
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            _ => {
                self.next = start;
                return Err(self.error("an escape that repr writes"));
            }
        };
        let mut code = Some(0_u32);
        for _ in 0..digits {
            let digit = self.peek().and_then(|character| character.to_digit(16));
            code = code.zip(digit).and_then(|(code, digit)| code.checked_mul(16)?.checked_add(digit));
            self.next += 1;
        }
        code.and_then(char::from_u32).ok_or_else(|| {
            self.next = start;
            self.error("the code of a character")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Literal, LiteralError> {
        Literal::parse(&text.char_indices().collect::<Vec<_>>())
    }

    #[test]
    fn literals_come_back_as_repr_writes_them() {
        for text in [
            "{'descr': '<f4', 'fortran_order': False, 'shape': (10, 3)}",
            "[('a', '<i4'), (('title', 'b'), '>f8', (2, 3)), ('', '|V4')]",
            "(5,)",
            "()",
            "None",
            r"'it\'s \\ \x07'",
        ] {
            assert_eq!(parse(text).expect(text).to_string(), text);
        }
    }

    #[test]
    fn blanks_quotes_brackets_and_long_integers_make_no_difference() {
        let plain = parse("{'shape': (3, 4)}").expect("plain");
        assert_eq!(parse(" {\t\"shape\" :( 3L,4L, ) , }\n ").expect("other"), plain);
        assert_eq!(parse("((3))"), Ok(Literal::Integer(3)));
        assert_eq!(parse(r"'\xe9\u00e9\U0001f600'"), Ok(Literal::Text("éé😀".to_owned())));
    }

    #[test]
    fn what_is_no_literal_is_a_fault_with_its_place() {
        for (text, at, expected) in [
            ("", 0, "a Python literal"),
            ("-1", 0, "a Python literal"),
            ("(1 2)", 3, "a comma or the closing bracket"),
            ("{1 2}", 3, "':'"),
            ("{1: 2", 5, "a comma or '}'"),
            ("[1] x", 4, "the end of the literal"),
            ("(18446744073709551616,)", 1, "an integer below 2^64"),
            ("__import__('os')", 0, "a Python literal"),
            ("Nothing", 0, "None, True or False"),
            ("'open", 5, "the closing quote"),
            (r"'\xg0'", 1, "the code of a character"),
            (r"'\ud800'", 1, "the code of a character"),
            (r"'\q'", 1, "an escape that repr writes"),
            (r"'\", 1, "an escape that repr writes"),
        ] {
            let error = parse(text).expect_err(text);
            assert_eq!((error.at, error.expected), (at, expected), "{text}: {error:?}");
        }
        let deep = "[".repeat(100_000);
        assert_eq!(parse(&deep).expect_err("deep").expected, "fewer brackets within one another");
    }
}
