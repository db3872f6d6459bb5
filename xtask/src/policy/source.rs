//! A Rust source file as the policy reads it: lines, code without comments and literals, paths.
//!
//! This is a scan, not a parser: it relies on rustfmt (a block ends at the first `}` in the column of its first line),
//! which CI enforces. Code under `#[cfg(test)]` is left out.

/// One file, line by line: a plain record.
pub(super) struct Source {
    /// Lines as they stand in the file.
    pub(super) text: Vec<String>,
    /// The same lines; comments and the contents of literals are blank, and so is code for tests.
    pub(super) code: Vec<String>,
    /// Modules in files of their own that exist for tests only (`#[cfg(test)] mod name;`).
    pub(super) test_modules: Vec<String>,
}

impl Source {
    pub(super) fn parse(file: &str) -> Self {
        let text: Vec<String> = file.lines().map(str::to_owned).collect();
        let mut code: Vec<String> = without_comments(file).lines().map(str::to_owned).collect();
        code.resize(text.len(), String::new());
        let mut test_modules = Vec::new();
        let mut at = 0;
        while at < code.len() {
            if code[at].trim() != "#[cfg(test)]" {
                at += 1;
                continue;
            }
            let item = (at + 1..code.len()).find(|&i| !code[i].trim().starts_with("#[")).unwrap_or(at);
            let end = block_end(&code, item);
            let name = code[item].trim().strip_prefix("mod ").and_then(|rest| rest.strip_suffix(';'));
            test_modules.extend(name.map(str::to_owned));
            code[at..=end].iter_mut().for_each(String::clear);
            at = end + 1;
        }
        Self { text, code, test_modules }
    }

    /// Every path that starts with `crate`, `self` or `super`, groups of a `use` taken apart. With each: whether it
    /// stands in a `pub use`, and the name that the `use` gives it.
    pub(super) fn paths(&self) -> Vec<SourcePath> {
        let code = self.code.join("\n");
        let tokens = tokens(&code);
        let mut paths = Vec::new();
        let mut at = 0;
        while at < tokens.len() {
            let starts = matches!(tokens[at], "crate" | "self" | "super" | "use")
                && (tokens[at] == "use" || tokens.get(at + 1) == Some(&"::"))
                && (at == 0 || tokens[at - 1] != "::");
            if !starts {
                at += 1;
                continue;
            }
            let is_use = tokens[at] == "use";
            let reexport = is_use && at > 0 && matches!(tokens[at - 1], "pub" | ")");
            if is_use {
                at += 1;
            }
            tree(&tokens, &mut at, &mut Vec::new(), reexport, is_use, &mut paths);
        }
        paths
    }
}

/// A path in a source file: a plain value.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SourcePath {
    pub(super) segments: Vec<String>,
    /// It stands in a `pub use`.
    pub(super) reexport: bool,
    /// The name under which a `use` brings it in.
    pub(super) name: String,
}

/// Reads the path or group at `at`, after `prefix`.
fn tree(
    tokens: &[&str],
    at: &mut usize,
    prefix: &mut Vec<String>,
    reexport: bool,
    is_use: bool,
    out: &mut Vec<SourcePath>,
) {
    let before = prefix.len();
    loop {
        match tokens.get(*at) {
            Some(&"{") if is_use => {
                *at += 1;
                while !matches!(tokens.get(*at), None | Some(&"}")) {
                    tree(tokens, at, prefix, reexport, is_use, out);
                    if tokens.get(*at) == Some(&",") {
                        *at += 1;
                    }
                }
                *at += 1;
                break;
            }
            Some(word) if is_word(word) || *word == "*" => {
                prefix.push((*word).to_owned());
                *at += 1;
                if tokens.get(*at) == Some(&"::") {
                    *at += 1;
                    continue;
                }
                let mut name = prefix.last().cloned().unwrap_or_default();
                if is_use && tokens.get(*at) == Some(&"as") {
                    name = tokens.get(*at + 1).map_or(name, |alias| (*alias).to_owned());
                    *at += 2;
                }
                out.push(SourcePath { segments: prefix.clone(), reexport, name });
                break;
            }
            _ => {
                // A turbofish (`::<T>`) or a macro's `$`: the path so far is all.
                out.push(SourcePath { segments: prefix.clone(), reexport, name: String::new() });
                *at += 1;
                break;
            }
        }
    }
    prefix.truncate(before);
}

fn is_word(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphanumeric() || c == '_')
}

fn tokens(code: &str) -> Vec<&str> {
    let mut out = Vec::new();
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = if first.is_alphanumeric() || first == '_' {
            rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else {
            first.len_utf8()
        };
        out.push(&rest[..length]);
        rest = rest[length..].trim_start();
    }
    out
}

/// Columns before the first character that is not a space.
pub(super) fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// The last line of the item that starts at `start`.
pub(super) fn block_end(code: &[String], start: usize) -> usize {
    let column = indent(&code[start]);
    for (at, line) in code.iter().enumerate().skip(start) {
        let line_ends = line.trim_end();
        if line_ends.is_empty() || indent(line) > column {
            continue;
        }
        let closes = line.trim_start().starts_with('}') || at == start && line_ends.ends_with('}');
        if closes || line_ends.ends_with(';') || indent(line) < column {
            return at;
        }
    }
    code.len() - 1
}

/// The same text with comments and the contents of literals as spaces; lines stay where they are.
fn without_comments(file: &str) -> String {
    let bytes = file.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = match bytes[at] {
            b'/' if file[at..].starts_with("//") => file[at..].find('\n').map_or(bytes.len(), |n| at + n),
            b'/' if file[at..].starts_with("/*") => file[at..].find("*/").map_or(bytes.len(), |n| at + n + 2),
            b'"' => string_end(bytes, at + 1),
            b'r' if is_raw_string(bytes, at) => raw_string_end(file, at),
            b'\'' if bytes.get(at + 1) == Some(&b'\\') => {
                file[at + 3..].find('\'').map_or(bytes.len(), |n| at + 3 + n + 1)
            }
            b'\'' => match file[at + 1..].chars().next() {
                Some(c) if file[at + 1 + c.len_utf8()..].starts_with('\'') => at + c.len_utf8() + 2,
                _ => at, // a lifetime
            },
            _ => at,
        };
        out[at..end].iter_mut().filter(|b| **b != b'\n').for_each(|b| *b = b' ');
        at = end.max(at + 1);
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn string_end(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

fn is_raw_string(bytes: &[u8], at: usize) -> bool {
    let in_word =
        at > 0 && (bytes[at - 1].is_ascii_alphanumeric() && bytes[at - 1] != b'b' || bytes[at - 1] == b'_');
    let rest = bytes[at + 1..].iter().find(|b| **b != b'#');
    !in_word && rest == Some(&b'"')
}

fn raw_string_end(file: &str, at: usize) -> usize {
    let hashes = file[at + 1..].chars().take_while(|c| *c == '#').count();
    let close = format!("\"{}", "#".repeat(hashes));
    let from = at + 2 + hashes;
    file[from..].find(&close).map_or(file.len(), |n| from + n + close.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_a_use_are_taken_apart() {
        let source = Source::parse(
            "use crate::{a::B, c::{D as E, self}};\npub use crate::f::G;\nfn x() { crate::h::i(1) }\n",
        );
        let seen: Vec<_> =
            source.paths().into_iter().map(|p| (p.segments.join("::"), p.reexport, p.name)).collect();
        let expected = [
            ("crate::a::B", false, "B"),
            ("crate::c::D", false, "E"),
            ("crate::c::self", false, "self"),
            ("crate::f::G", true, "G"),
            ("crate::h::i", false, "i"),
        ];
        assert_eq!(seen, expected.map(|(path, reexport, name)| (path.to_owned(), reexport, name.to_owned())));
    }

    #[test]
    fn comments_literals_and_tests_are_no_code() {
        let source = Source::parse(
            "fn x() -> &'static str {\n    \"crate::a\" // crate::b\n}\n#[cfg(test)]\nmod tests {\n    use crate::c;\n}\n#[cfg(test)]\nmod model;\n",
        );
        assert!(source.paths().is_empty(), "{:?}", source.paths());
        assert_eq!(source.test_modules, ["model"]);
    }
}
