// Draws curves and heat maps with plotly. Every text reaches it escaped for its
// pseudo-HTML.
'use strict';
const LINES = {
  light: ['#0b63a5', '#c8500a', '#15803d', '#a3468c', '#8a6d00', '#4b5563'],
  dark: ['#6cb6f5', '#ff9a5c', '#5fd08f', '#e79ad0', '#e6c34a', '#aab4c0'],
};
const HEAT = {
  light: [[0, '#c8500a'], [0.5, '#f5f5f3'], [1, '#0b4f88']],
  dark: [[0, '#f08a45'], [0.5, '#23282e'], [1, '#6cb6f5']],
};
// From nothing to the most: of rates.
const RATES = {
  light: [[0, '#f5f5f3'], [1, '#0b4f88']],
  dark: [[0, '#23282e'], [1, '#6cb6f5']],
};
const DASHES = ['solid', 'dot', 'dash', 'dashdot'];
const SYMBOLS = ['circle', 'square', 'diamond', 'x'];
const MARKS = {incident: 'triangle-down', continued: 'triangle-right'};
const dark = matchMedia('(prefers-color-scheme: dark)');
const theme = () => (dark.matches ? 'dark' : 'light');
const css = (name) =>
  getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const plain = (text) => String(text)
  .replace(/&/g, '&amp;').replace(/</g, '&lt;').replace(/>/g, '&gt;');

function axis(title, more) {
  return {
    title: {text: plain(title), standoff: 6}, automargin: true,
    gridcolor: css('--line'), linecolor: css('--line'), zeroline: false,
    ...more,
  };
}

function layout(more) {
  return {
    paper_bgcolor: 'rgba(0,0,0,0)', plot_bgcolor: 'rgba(0,0,0,0)',
    font: {color: css('--ink'), family: 'inherit', size: 12},
    margin: {l: 8, r: 12, t: 12, b: 8}, hovermode: 'x unified',
    // A finger scrolls the page, a mouse zooms; a double click goes back.
    dragmode: matchMedia('(pointer: coarse)').matches ? false : 'zoom',
    hoverlabel: {bgcolor: css('--card'), font: {color: css('--ink')}},
    legend: {orientation: 'h', x: 0, y: -0.22, yanchor: 'top'},
    ...more,
  };
}

// A logarithmic axis has few labels: 1, 2 and 5 of each decade, or 1 alone.
function logarithmic(values) {
  const logs = values.filter((v) => v > 0).map(Math.log10);
  if (!logs.length) return {type: 'log'};
  const low = Math.min(...logs), high = Math.max(...logs);
  const digits = high - low > 2 ? [1] : high - low > 0.5 ? [1, 2, 5] :
    [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8];
  const ticks = [];
  for (let n = Math.floor(low) - 1; n <= high + 1; n++) {
    ticks.push(...digits.map((d) => Number(`${d}e${n}`)));
  }
  return {
    type: 'log', tickmode: 'array', tickvals: ticks,
    ticktext: ticks.map((v) => (v < 1e-4 ? v.toExponential() : String(v))),
  };
}

// Sizes in bytes are read in powers of two.
function binary(values) {
  const most = Math.max(...values), least = Math.min(...values), ticks = [];
  const step = most > 2048 * least ? 32 : 4;
  for (let v = 1; v <= most; v *= step) if (v * step > least) ticks.push(v);
  const label = (v) => {
    const k = Math.floor(Math.log2(v) / 10);
    return `${v / 2 ** (10 * k)} ${['B', 'KiB', 'MiB', 'GiB', 'TiB'][k]}`;
  };
  return {
    type: 'log', tickmode: 'array', tickvals: ticks, ticktext: ticks.map(label),
  };
}

const colourOf = (place) => LINES[theme()][place % LINES[theme()].length];
const markColour = ({place}) =>
  (typeof place === 'number' ? colourOf(place) : css('--dim'));

function curve(trace) {
  const [colour, dash] = (trace.place || [0, 2]).map(Number);
  const whole = {
    type: 'scatter', name: plain(trace.name), x: trace.x, y: trace.y,
    line: {
      color: trace.place ? colourOf(colour) : css('--dim'),
      width: 1.8, dash: DASHES[trace.level ? 2 : dash % DASHES.length],
    },
    mode: trace.x.length < 40 && !trace.level ? 'lines+markers' : 'lines',
    marker: {
      symbol: SYMBOLS[dash % SYMBOLS.length], size: trace.x.length < 3 ? 9 : 5,
    },
    hovertemplate: '%{y:.5~g}',
  };
  if (!trace.mean) return [whole];
  // Every stretch from least to most, pale, and its mean.
  const range = {
    ...whole, opacity: 0.3, line: {...whole.line, width: 1},
    showlegend: false, hoverinfo: 'skip', hovertemplate: undefined,
  };
  return [range, {...whole, x: trace.mean[0], y: trace.mean[1]}];
}

function lines(choice, logSteps) {
  const data = choice.traces.flatMap(curve);
  const marks = choice.marks || [];
  for (const kind of Object.keys(MARKS)) {
    const shown = marks.filter((m) => m.kind === kind);
    if (shown.length) {
      data.push({
        type: 'scatter', mode: 'markers', name: kind, yaxis: 'y2',
        x: shown.map((m) => m.x), y: shown.map(() => 1),
        text: shown.map((m) => plain(m.text)), hovertemplate: '%{text}',
        marker: {symbol: MARKS[kind], size: 9, color: shown.map(markColour)},
      });
    }
  }
  const shapes = marks.map((m) => ({
    type: 'line', x0: m.x, x1: m.x, y0: 0, y1: 1, yref: 'paper',
    line: {color: markColour(m), width: 1, dash: 'dot'},
  }));
  const all = (name) => choice.traces.flatMap((trace) => trace[name]);
  const whole = choice.x_title === 'layer' ?
    {tickformat: 'd', dtick: Math.ceil((choice.traces[0].x.length + 1) / 12)} : {};
  const scale = choice.log ? logarithmic(all('y')) :
    {range: choice.range || undefined, tickformat: choice.tick};
  return [data, layout({
    shapes, showlegend: choice.traces.length > 1 || marks.length > 0,
    xaxis: axis(choice.x_title, {
      rangemode: 'tozero', ...whole,
      ...(choice.log_x || (logSteps && choice.x_title === 'step') ?
        (choice.x_title === 'bytes' ? binary : logarithmic)(all('x')) : {}),
    }),
    yaxis: axis(choice.y_title, {
      exponentformat: 'power', minexponent: 4, ...scale,
    }),
    yaxis2: {overlaying: 'y', range: [0, 1], visible: false, fixedrange: true},
  })];
}

function heat(choice, width) {
  const isSkip = (name) => name.startsWith('skip');
  const part = (keep, more) => ({
    type: 'heatmap', x: choice.x.map(String), y: choice.y.map(plain),
    z: choice.z.map((row, i) => (keep(choice.y[i]) ? row : row.map(() => null))),
    zmin: 0, hoverongaps: false, xgap: choice.x.length < 40 ? 1 : 0, ygap: 1,
    // Numbers where there is room.
    texttemplate: width / choice.x.length > 40 ? '%{z}' : '',
    hovertemplate: `${plain(choice.x_title)} %{x}, %{y}: ` +
      `%{z} ${plain(choice.unit || '%')}<extra></extra>`,
    ...more,
  });
  const bar = {thickness: 10, outlinewidth: 0, xpad: 4};
  const data = [part((name) => !isSkip(name), choice.unit ? {
    zmax: choice.most, colorscale: RATES[theme()], colorbar: bar,
  } : {
    zmid: 100, zmax: 200, colorscale: HEAT[theme()],
    colorbar: {
      ...bar, tickvals: [0, 100, 200], ticktext: ['0', 'even', '2x'],
    },
  })];
  if (choice.y.some(isSkip)) {
    data.push(part(isSkip, {
      zmax: 200, showscale: false,
      colorscale: [[0, css('--card')], [1, css('--dim')]],
    }));
  }
  return [data, layout({
    hovermode: 'closest',
    xaxis: axis(choice.x_title, {type: 'category', nticks: innerWidth < 600 ? 4 : 10, tickangle: 0}),
    yaxis: axis('', {type: 'category', autorange: 'reversed', dtick: 1}),
  })];
}

function plot(node, kind, choice, logSteps) {
  const rem = kind === 'heat' ? 5 + 1.25 * choice.y.length :
    17.5 + 1.3 * Math.ceil((choice.traces.length - 1) / 2);
  node.style.height = `${Math.max(19, rem)}rem`;
  const [data, form] = kind === 'heat' ? heat(choice, node.clientWidth - 150) :
    lines(choice, logSteps);
  Plotly.react(node, data, form, {responsive: true, displayModeBar: false});
}
