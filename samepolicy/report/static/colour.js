// The one scale of colour for a log-ratio: orange below 0, blue above, even in asinh(x / unit), the unit being the rounding floor.
SP.colour = (() => {
  const scales = {
    light: { text: [[179, 84, 10], [240, 160, 85], [255, 255, 255], [134, 182, 222], [62, 122, 186]], cell: [[127, 39, 4], [224, 130, 20], [247, 247, 245], [90, 155, 205], [8, 48, 107]], none: [236, 234, 229], bad: [150, 40, 160] },
    dark: { text: [[164, 79, 16], [104, 58, 26], [25, 28, 32], [29, 60, 94], [44, 99, 160]], cell: [[250, 176, 100], [176, 88, 20], [34, 38, 43], [48, 110, 175], [150, 200, 245]], none: [24, 27, 31], bad: [220, 110, 230] },
  };
  const unit = SP.data.report.unit;
  let full = SP.data.report.full;
  const scale = () => (SP.dark() ? scales.dark : scales.light);
  const height = (value) => Math.max(-1, Math.min(1, Math.asinh(value / unit) / Math.asinh(full / unit)));

  function mix(stops, where) {
    const place = ((where + 1) / 2) * (stops.length - 1);
    const first = Math.min(Math.floor(place), stops.length - 2);
    const share = place - first;
    return stops[first].map((c, i) => Math.round(c + (stops[first + 1][i] - c) * share));
  }
  const luminance = (rgb) => rgb.map((c) => (c <= 10 ? c / 3295 : ((c / 255 + 0.055) / 1.055) ** 2.4)).reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const css = ([r, g, b]) => `rgb(${r} ${g} ${b})`;

  return {
    text: (value) => css(mix(scale().text, height(value))),
    cell: (value) => mix(scale().cell, height(value)),
    none: () => scale().none,
    bad: () => scale().bad,
    // Black or white, whichever reads better on that colour: never below 4.5 to 1.
    ink: (value) => (luminance(mix(scale().text, height(value))) > 0.179 ? "#000" : "#fff"),
    full: () => full,
    setFull(value) { full = value; SP.tell("colour"); },
    legend(canvas) {
      const pen = canvas.getContext("2d");
      for (let x = 0; x < canvas.width; x++) {
        pen.fillStyle = css(mix(scale().cell, (2 * x) / (canvas.width - 1) - 1));
        pen.fillRect(x, 0, 1, canvas.height);
      }
    },
  };
})();
