"""The style sheet of the page: light and dark as the reader's system is, narrow and wide."""

from __future__ import annotations

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --ink: #1d2430; --soft: #5b6675; --rule: #d9dee5; --panel: #f5f7fa;
  --c0: #2f6fb3; --c1: #c8641e; --c2: #2f8f5b; --c3: #a23b72; --c4: #7a5fc0; --c5: #8a7a16; --c6: #188a96;
  --c7: #77604f; --bad: #b3261e; --warn: #8a5a00;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14181f; --ink: #e4e8ee; --soft: #9aa6b5; --rule: #333b47; --panel: #1c222b;
    --c0: #6aa8ea; --c1: #f09a5a; --c2: #62c48f; --c3: #e07fb4; --c4: #ab95ee; --c5: #d3c04e; --c6: #56c5d1;
    --c7: #bda28f; --bad: #ff8a80; --warn: #ffc35c;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; max-width: 68rem; padding: 1.5rem 1rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif;
}
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.5rem 0 .5rem; overflow-wrap: anywhere; }
p { margin: .5rem 0; overflow-wrap: anywhere; }
.soft, caption, figcaption, footer { color: var(--soft); }
footer { margin-top: 3rem; border-top: 1px solid var(--rule); padding-top: .75rem; font-size: .85rem; }
code { white-space: nowrap; font: .9em ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }
dl { display: grid; grid-template-columns: minmax(7rem, max-content) 1fr; gap: .15rem 1rem;
  margin: .75rem 0; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; white-space: pre-wrap; }
section { scroll-margin-top: 1rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; margin: .75rem 0; }
caption, figcaption { text-align: left; padding-bottom: .35rem; font-size: .9rem; }
th, td { padding: .25rem .6rem .25rem 0; text-align: left; vertical-align: top; font-weight: normal; }
thead th { color: var(--soft); border-bottom: 1px solid var(--rule); font-size: .85rem; white-space: nowrap; }
tbody tr + tr td, tbody tr + tr th { border-top: 1px solid var(--rule); }
.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.name { overflow-wrap: break-word; white-space: pre-wrap; }
.bars td, .bars th, .lanes td, .lanes th {
  border: 0; padding: .1rem .6rem .1rem 0; vertical-align: middle;
}
.bars th, .lanes th {
  width: 1%; text-align: right; white-space: pre; font-size: .9rem; font-variant-numeric: tabular-nums;
}
.bars th.long, .lanes th.long { min-width: 14rem; white-space: pre-wrap; overflow-wrap: anywhere; }
.bars .number { width: 1%; font-size: .9rem; }
.bar { min-width: 6rem; }
svg { display: block; width: 100%; background: var(--panel); shape-rendering: crispEdges; }
svg.wide { shape-rendering: auto; }
svg.thin { height: 1.05rem; }
svg.wide { height: 13rem; }
.lanes svg.thin { height: .95rem; }
figure { margin: .75rem 0; }
.curve { display: flex; gap: .6rem; }
.plot { flex: 1; min-width: 0; }
.side { display: flex; flex-direction: column; justify-content: space-between; text-align: right;
  font-size: .8rem; color: var(--soft); padding-bottom: 1.3rem; white-space: nowrap; }
.axis { display: flex; justify-content: space-between; gap: .5rem; font-size: .8rem; color: var(--soft); }
.stroke { stroke: var(--c0); stroke-width: 2; vector-effect: non-scaling-stroke; }
.area { fill: var(--c0); fill-opacity: .18; }
.mark { stroke: var(--ink); stroke-width: 2; vector-effect: non-scaling-stroke; }
.c0 { fill: var(--c0); } .c1 { fill: var(--c1); } .c2 { fill: var(--c2); } .c3 { fill: var(--c3); }
.c4 { fill: var(--c4); } .c5 { fill: var(--c5); } .c6 { fill: var(--c6); } .c7 { fill: var(--c7); }
.key { display: inline-block; width: .8rem; height: .8rem; margin-right: .4rem; vertical-align: -.05rem; }
.keys { list-style: none; padding: 0; margin: .5rem 0; display: flex; flex-wrap: wrap; gap: .25rem 1.25rem;
  font-size: .9rem; }
.keys li { overflow-wrap: anywhere; }
.error { color: var(--bad); } .warning { color: var(--warn); } .good { color: var(--c2); }
.tokens { display: grid; grid-template-columns: repeat(auto-fit, minmax(17rem, 1fr)); gap: 0 2rem;
  align-items: start; }
@media (max-width: 34rem) {
  body { padding: 1rem .75rem 3rem; }
  dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: .4rem; }
  .bars th, .lanes th { font-size: .8rem; }
  .bars th.long, .lanes th.long { min-width: 8rem; }
  .bars .number { font-size: .8rem; }
  svg.wide { height: 9rem; }
}
@media print { body { max-width: none; } section { break-inside: avoid; } }
"""
