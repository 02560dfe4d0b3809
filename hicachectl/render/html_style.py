"""Style sheet and textures of HTML reports. Colours are the Okabe-Ito set, told apart by most colour-blind readers; fills also differ by texture."""

from __future__ import annotations

__all__ = ["HATCHES", "STYLE"]

STYLE = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1c2024;--dim:#5b636b;--line:#d5d9dd;--card:#f5f6f8;
--device:#0072b2;--host:#e69f00;--storage:#009e73;--bar:#9aa7b3;--ok:#00664b;--bad:#a33a00}
@media(prefers-color-scheme:dark){:root{--bg:#14171a;--fg:#e4e7ea;--dim:#9aa3ab;--line:#343a40;--card:#1d2125;
--device:#56b4e9;--host:#e69f00;--storage:#2fc598;--bar:#5d6a76;--ok:#4fd1a5;--bad:#ff9b66}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif}
main{max-width:1060px;margin:0 auto;padding:20px 16px 48px}
h1{font-size:24px;margin:0;overflow-wrap:anywhere}h2{font-size:16px;margin:0}
p{margin:4px 0}.about,figcaption p{color:var(--dim);font-size:13px}
section,figure{margin:24px 0 0}
.verdict{background:var(--card);border-left:5px solid var(--dim);padding:12px 16px}
.verdict.yes{border-color:var(--ok)}.verdict.no{border-color:var(--bad)}
.word{font-weight:800;letter-spacing:.04em}.yes .word{color:var(--ok)}.no .word,.wrong{color:var(--bad)}
.plots,.tables{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));column-gap:32px}
.plots>*,.tables>*{min-width:0}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:13.5px;margin:6px 0;font-variant-numeric:tabular-nums}
th,td{padding:3px 14px 3px 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--line);white-space:nowrap}
th{font-weight:600}thead th{color:var(--dim);font-weight:500}
td:first-child{white-space:nowrap!important}.num{text-align:right}td.text{white-space:normal}
pre{background:var(--card);padding:6px 10px;margin:4px 0;overflow-x:auto;font-size:13px}
ol,ul{margin:6px 0;padding-left:22px}li{margin:3px 0}
.legend{display:flex;gap:18px;list-style:none;padding:0;margin:6px 0 0;font-size:13px}
.key{width:14px;height:14px;vertical-align:-2px;margin-right:6px}
figure>svg{display:block;width:100%;height:auto;margin-top:6px}
.hatches{position:absolute;width:0;height:0}
svg text{font:12px system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif;fill:var(--fg)}
svg .title{fill:var(--dim)}
.grid{stroke:var(--line)}.axis{stroke:var(--dim)}.frame{fill:var(--card);stroke:var(--line)}
.mark{stroke:var(--fg);stroke-dasharray:4 3}.halo{paint-order:stroke;stroke:var(--bg);stroke-width:4px;stroke-linejoin:round}
.tier.device{fill:var(--device)}.tier.host{fill:url(#hatch-host)}.tier.storage{fill:url(#hatch-storage)}
.reuse,.latency{fill:var(--bar)}.curve{fill:none;stroke:var(--device);stroke-width:2.2;stroke-linejoin:round}
.hatch-host{fill:var(--host)}.hatch-storage{fill:var(--storage)}.hatch-line{stroke:var(--bg);stroke-width:1.2;opacity:.75}.hatch-dot{fill:var(--bg);opacity:.75}
details{font-size:13px;color:var(--dim)}details table{color:var(--fg)}summary{cursor:pointer}
@media print{:root{--bg:#fff;--fg:#000}section,figure{break-inside:avoid}}
""".strip()

HATCHES = (
    "<svg class=hatches aria-hidden=true><defs>"
    "<pattern id=hatch-host width=6 height=6 patternUnits=userSpaceOnUse patternTransform=rotate(45)>"
    "<rect class=hatch-host width=6 height=6 /><line class=hatch-line x1=0 y1=0 x2=0 y2=6 /></pattern>"
    "<pattern id=hatch-storage width=6 height=6 patternUnits=userSpaceOnUse>"
    "<rect class=hatch-storage width=6 height=6 /><circle class=hatch-dot cx=3 cy=3 r=1 /></pattern></defs></svg>"
)
