//! Rewrites a parsed template so that every operation whose result or work can grow calls a function of `ops`.
//!
//! This also keeps those operations out of minijinja's constant folding, which would run them while loading.

use super::value::Outcome;
use minijinja::machinery::{Span, ast};
use minijinja::value::Value;
use minijinja::{Error, ErrorKind};

/// Names of `ops`' functions. They begin with a blank, so no template can write them.
pub(super) mod names {
    pub(crate) const ADD: &str = " +";
    pub(crate) const MUL: &str = " *";
    pub(crate) const CONCAT: &str = " ~";
    pub(crate) const COMPARE: &str = " compare";
    pub(crate) const ITEM: &str = " item";
    pub(crate) const SLICE: &str = " slice";
    pub(crate) const LIST: &str = " list";
    pub(crate) const TUPLE: &str = " tuple";
    pub(crate) const MAP: &str = " map";
    pub(crate) const SET: &str = " set";
    pub(crate) const ITER: &str = " iter";
    pub(crate) const ATTR: &str = " attr";
    pub(crate) const METHOD: &str = " method";
    pub(crate) const CALL: &str = " call";
    pub(crate) const CAPTURED: &str = " captured";
}
/// The variable for unused results of statements, and the variable that receives a block's output.
const IGNORED: &str = " ";
const BLOCK: &str = " block";

type Expr<'a> = ast::Expr<'a>;
type Stmt<'a> = ast::Stmt<'a>;

pub(super) fn template<'a>(parsed: &Stmt<'a>) -> Outcome<Stmt<'a>> {
    let Stmt::Template(t) = parsed else { return Err(unsupported("this kind of template")) };
    Ok(Stmt::Template(spanned(ast::Template { children: body(&t.children)? }, t.span())))
}

fn unsupported(what: &str) -> Error {
    Error::new(ErrorKind::SyntaxError, format!("{what} is not supported in chat templates"))
}

fn spanned<T>(node: T, span: Span) -> ast::Spanned<T> {
    ast::Spanned::new(node, span)
}

fn var(id: &'static str, span: Span) -> Expr<'static> {
    Expr::Var(spanned(ast::Var { id }, span))
}

fn constant(value: impl Into<Value>, span: Span) -> Expr<'static> {
    Expr::Const(spanned(ast::Const { value: value.into() }, span))
}

fn call<'a>(name: &'static str, args: Vec<Expr<'a>>, span: Span) -> Expr<'a> {
    let args = args.into_iter().map(ast::CallArg::Pos).collect();
    Expr::Call(spanned(ast::Call { expr: var(name, span), args }, span))
}

fn body<'a>(statements: &[Stmt<'a>]) -> Outcome<Vec<Stmt<'a>>> {
    let mut out = Vec::with_capacity(statements.len());
    for stmt in statements {
        statement(stmt, &mut out)?;
    }
    Ok(out)
}

fn statement<'a>(stmt: &Stmt<'a>, out: &mut Vec<Stmt<'a>>) -> Outcome<()> {
    let rewritten = match stmt {
        Stmt::EmitExpr(s) => Stmt::EmitExpr(spanned(ast::EmitExpr { expr: expr(&s.expr)? }, s.span())),
        // Through the formatter, which counts the bytes.
        Stmt::EmitRaw(s) => {
            Stmt::EmitExpr(spanned(ast::EmitExpr { expr: constant(s.raw, s.span()) }, s.span()))
        }
        Stmt::ForLoop(s) => Stmt::ForLoop(spanned(
            ast::ForLoop {
                target: target(&s.target)?,
                iter: call(names::ITER, vec![expr(&s.iter)?], s.iter.span()),
                filter_expr: s.filter_expr.as_ref().map(expr).transpose()?,
                recursive: s.recursive,
                body: body(&s.body)?,
                else_body: body(&s.else_body)?,
            },
            s.span(),
        )),
        Stmt::IfCond(s) => {
            let (true_body, false_body) = (body(&s.true_body)?, body(&s.false_body)?);
            Stmt::IfCond(spanned(ast::IfCond { expr: expr(&s.expr)?, true_body, false_body }, s.span()))
        }
        Stmt::WithBlock(s) => {
            let one = |(to, from): &(Expr<'a>, Expr<'a>)| Ok((target(to)?, expr(from)?));
            let assignments = s.assignments.iter().map(one).collect::<Outcome<_>>()?;
            Stmt::WithBlock(spanned(ast::WithBlock { assignments, body: body(&s.body)? }, s.span()))
        }
        Stmt::Set(s) => set(&s.target, expr(&s.expr)?, s.span())?,
        Stmt::SetBlock(s) => {
            capture(body(&s.body)?, s.span(), out);
            set(&s.target, filtered(s.filter.as_ref(), s.span())?, s.span())?
        }
        Stmt::FilterBlock(s) => {
            capture(body(&s.body)?, s.span(), out);
            let expr = filtered(Some(&s.filter), s.span())?;
            Stmt::EmitExpr(spanned(ast::EmitExpr { expr }, s.span()))
        }
        Stmt::Macro(s) => Stmt::Macro(spanned(macro_of(s)?, s.span())),
        Stmt::CallBlock(s) => {
            let Expr::Call(call) = call_of(&s.call, s.call.span())? else {
                return Err(unsupported("a 'call' of this"));
            };
            let macro_decl = spanned(macro_of(&s.macro_decl)?, s.macro_decl.span());
            Stmt::CallBlock(spanned(ast::CallBlock { call, macro_decl }, s.span()))
        }
        Stmt::Continue(s) => Stmt::Continue(spanned(ast::Continue, s.span())),
        Stmt::Break(s) => Stmt::Break(spanned(ast::Break, s.span())),
        Stmt::AutoEscape(_) => return Err(unsupported("the statement 'autoescape'")),
        Stmt::Do(_) => return Err(unsupported("the statement 'do'")),
        // There is no other template to include, import or extend.
        _ => return Err(unsupported("a statement for several templates")),
    };
    out.push(rewritten);
    Ok(())
}

/// Captures the output of `body` in `BLOCK`, which is not a string yet.
fn capture<'a>(body: Vec<Stmt<'a>>, span: Span, out: &mut Vec<Stmt<'a>>) {
    let block = ast::SetBlock { target: var(BLOCK, span), filter: None, body };
    out.push(Stmt::SetBlock(spanned(block, span)));
}

/// The captured output as a string, passed through the filters of a block. The innermost filter has no operand of
/// its own.
fn filtered<'a>(filter: Option<&Expr<'a>>, span: Span) -> Outcome<Expr<'a>> {
    match filter {
        None => Ok(call(names::CAPTURED, vec![var(BLOCK, span)], span)),
        Some(Expr::Filter(f)) => {
            let inner = filtered(f.expr.as_ref(), span)?;
            let args = arguments(&f.args)?;
            Ok(Expr::Filter(spanned(ast::Filter { name: f.name, expr: Some(inner), args }, f.span())))
        }
        Some(_) => Err(unsupported("this filter of a block")),
    }
}

fn macro_of<'a>(m: &ast::Macro<'a>) -> Outcome<ast::Macro<'a>> {
    Ok(ast::Macro {
        name: m.name,
        args: m.args.iter().map(target).collect::<Outcome<_>>()?,
        defaults: m.defaults.iter().map(expr).collect::<Outcome<_>>()?,
        body: body(&m.body)?,
    })
}

/// `target = value`; an attribute of a namespace is set by a call.
fn set<'a>(to: &Expr<'a>, value: Expr<'a>, span: Span) -> Outcome<Stmt<'a>> {
    let set = match to {
        Expr::GetAttr(attr) => {
            let args = vec![expr(&attr.expr)?, constant(attr.name, span), value];
            ast::Set { target: var(IGNORED, span), expr: call(names::SET, args, span) }
        }
        to => ast::Set { target: target(to)?, expr: value },
    };
    Ok(Stmt::Set(spanned(set, span)))
}

/// The target of an assignment: a name, or names to unpack into.
fn target<'a>(to: &Expr<'a>) -> Outcome<Expr<'a>> {
    let all = |items: &[Expr<'a>]| items.iter().map(target).collect::<Outcome<Vec<_>>>();
    Ok(match to {
        Expr::Var(v) => Expr::Var(spanned(ast::Var { id: v.id }, v.span())),
        Expr::List(l) => Expr::List(spanned(ast::List { items: all(&l.items)? }, l.span())),
        Expr::Tuple(t) => Expr::Tuple(spanned(ast::Tuple { items: all(&t.items)? }, t.span())),
        _ => return Err(unsupported("an assignment to this")),
    })
}

fn expr<'a>(e: &Expr<'a>) -> Outcome<Expr<'a>> {
    let span = e.span();
    let all = |items: &[Expr<'a>]| items.iter().map(expr).collect::<Outcome<Vec<_>>>();
    Ok(match e {
        Expr::Var(v) => Expr::Var(spanned(ast::Var { id: v.id }, span)),
        Expr::Const(c) => constant(c.value.clone(), span),
        Expr::Slice(s) => {
            let part = |part: &Option<Expr<'a>>| part.as_ref().map_or(Ok(constant((), span)), expr);
            let args = vec![expr(&s.expr)?, part(&s.start)?, part(&s.stop)?, part(&s.step)?];
            call(names::SLICE, args, span)
        }
        Expr::UnaryOp(u) => {
            // `UnaryOpKind` is not `Copy`.
            #[allow(clippy::needless_match)]
            let op = match u.op {
                ast::UnaryOpKind::Not => ast::UnaryOpKind::Not,
                ast::UnaryOpKind::Neg => ast::UnaryOpKind::Neg,
            };
            Expr::UnaryOp(spanned(ast::UnaryOp { op, expr: expr(&u.expr)? }, span))
        }
        Expr::BinOp(b) => binary(b.op, expr(&b.left)?, expr(&b.right)?, span),
        Expr::Compare(c) => {
            let mut args = vec![expr(&c.expr)?];
            for op in &c.ops {
                args.push(constant(comparison(op.op), span));
                args.push(expr(&op.expr)?);
            }
            call(names::COMPARE, args, span)
        }
        Expr::IfExpr(i) => {
            let false_expr = i.false_expr.as_ref().map(expr).transpose()?;
            let (test_expr, true_expr) = (expr(&i.test_expr)?, expr(&i.true_expr)?);
            Expr::IfExpr(spanned(ast::IfExpr { test_expr, true_expr, false_expr }, span))
        }
        Expr::Filter(f) => {
            let inner = f.expr.as_ref().map(expr).transpose()?;
            let args = arguments(&f.args)?;
            Expr::Filter(spanned(ast::Filter { name: f.name, expr: inner, args }, span))
        }
        Expr::Test(t) => {
            let args = arguments(&t.args)?;
            Expr::Test(spanned(ast::Test { name: t.name, expr: expr(&t.expr)?, args }, span))
        }
        Expr::GetAttr(g) => call(names::ATTR, vec![expr(&g.expr)?, constant(g.name, span)], span),
        Expr::GetItem(g) => call(names::ITEM, vec![expr(&g.expr)?, expr(&g.subscript_expr)?], span),
        Expr::Call(c) => call_of(c, span)?,
        Expr::List(l) => call(names::LIST, all(&l.items)?, span),
        Expr::Tuple(t) => call(names::TUPLE, all(&t.items)?, span),
        Expr::Map(m) => {
            let pairs = m.keys.iter().zip(&m.values).flat_map(|(key, value)| [key, value]);
            call(names::MAP, pairs.map(expr).collect::<Outcome<_>>()?, span)
        }
    })
}

/// A method call goes through `METHOD`, a function call through `CALL`, since it may be a macro.
fn call_of<'a>(c: &ast::Call<'a>, span: Span) -> Outcome<Expr<'a>> {
    let args = arguments(&c.args)?;
    let through = |name, first: Vec<Expr<'a>>, args: Vec<ast::CallArg<'a>>| {
        let args = first.into_iter().map(ast::CallArg::Pos).chain(args).collect();
        Expr::Call(spanned(ast::Call { expr: var(name, span), args }, span))
    };
    Ok(match &c.expr {
        // `loop(x)` runs the loop's body on x; the VM recognizes it only by this name.
        Expr::Var(v) if v.id == "loop" => {
            let iter = |arg| match arg {
                ast::CallArg::Pos(e) => ast::CallArg::Pos(call(names::ITER, vec![e], span)),
                other => other,
            };
            let args = args.into_iter().map(iter).collect();
            let recursion = Expr::Call(spanned(ast::Call { expr: var("loop", span), args }, span));
            call(names::CAPTURED, vec![recursion], span)
        }
        Expr::GetAttr(g) => through(names::METHOD, vec![expr(&g.expr)?, constant(g.name, span)], args),
        function => through(names::CALL, vec![expr(function)?], args),
    })
}

fn arguments<'a>(args: &[ast::CallArg<'a>]) -> Outcome<Vec<ast::CallArg<'a>>> {
    let one = |arg: &ast::CallArg<'a>| match arg {
        ast::CallArg::Pos(e) => Ok(ast::CallArg::Pos(expr(e)?)),
        ast::CallArg::Kwarg(name, e) => Ok(ast::CallArg::Kwarg(name, expr(e)?)),
        ast::CallArg::PosSplat(_) | ast::CallArg::KwargSplat(_) => {
            Err(unsupported("unpacking arguments by '*' or '**'"))
        }
    };
    args.iter().map(one).collect()
}

fn binary<'a>(op: ast::BinOpKind, left: Expr<'a>, right: Expr<'a>, span: Span) -> Expr<'a> {
    use ast::BinOpKind as B;
    let compare =
        |sign: &'static str, left, right| call(names::COMPARE, vec![left, constant(sign, span), right], span);
    match op {
        B::Add => call(names::ADD, vec![left, right], span),
        B::Mul => call(names::MUL, vec![left, right], span),
        B::Concat => call(names::CONCAT, vec![left, right], span),
        B::Eq => compare("==", left, right),
        B::Ne => compare("!=", left, right),
        B::Lt => compare("<", left, right),
        B::Lte => compare("<=", left, right),
        B::Gt => compare(">", left, right),
        B::Gte => compare(">=", left, right),
        B::In => compare("in", left, right),
        // These operators work on numbers only, or fail.
        B::Sub | B::Div | B::FloorDiv | B::Rem | B::Pow | B::ScAnd | B::ScOr => {
            Expr::BinOp(spanned(ast::BinOp { op, left, right }, span))
        }
    }
}

fn comparison(op: ast::CompareOpKind) -> &'static str {
    use ast::CompareOpKind as C;
    match op {
        C::Eq => "==",
        C::Ne => "!=",
        C::Lt => "<",
        C::Lte => "<=",
        C::Gt => ">",
        C::Gte => ">=",
        C::In => "in",
        C::NotIn => "not in",
    }
}
